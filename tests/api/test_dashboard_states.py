"""What the dashboard shows to strangers and tenants, of a store without a model, of a server that is gone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstore.namespace import Namespace
from tests.api.admin_command import NEW, OLD, TOKEN, Commanded, commanded
from tests.api.dashboard import column, log_in, shown, states

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
HOSTILE = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Commanded]:
    with commanded(tmp_path) as store:
        yield store


def test_a_token_is_asked_for_and_kept_in_this_tab_alone(page: Any, store: Commanded) -> None:
    shown(page, store.url)
    assert page.is_hidden("#main")
    assert page.evaluate("document.activeElement.id") == "token"
    log_in(page, "wrong")
    sync_api.expect(page.locator("#token-fault")).to_have_text("That token was not accepted.")
    log_in(page, "tökén")
    assert page.inner_text("#token-fault").startswith("That is no token")
    log_in(page, TOKEN)
    page.wait_for_selector("#tiers[data-state=ready]")
    assert page.is_hidden("#login")
    assert page.evaluate("[sessionStorage.getItem('prefixd.token'), localStorage.length]") == [TOKEN, 0]
    assert page.evaluate("document.cookie") == ""
    assert TOKEN not in page.content()
    page.reload()
    page.wait_for_selector("#tiers[data-state=ready]")
    other_tab = page.context.new_page()
    assert shown(other_tab, store.url).is_visible("#login")
    page.get_by_role("button", name="Forget token").click()
    page.wait_for_selector("#login:not([hidden])")


def test_a_tenant_sees_its_own_and_is_told_what_it_may_not_see(page: Any, store: Commanded) -> None:
    store.keep(OLD)
    store.keep(NEW.with_salt("", "acme"))
    shown(page, store.url)
    log_in(page, "acmes-admin-token")
    page.wait_for_selector("#namespaces[data-state=ready]")
    page.wait_for_selector("#audit:not([data-state=loading])")
    assert column(page, "namespaces", 1)[0].startswith("new-model")
    assert len(column(page, "namespaces", 1)) == 1
    assert "concerns all tenants" in page.inner_text("#hits")
    assert page.get_attribute("#hits", "data-state") == "not-allowed"


def test_an_empty_store_without_a_model_says_so(page: Any, store: Commanded) -> None:
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status == 400 else None)
    shown(page, store.url)
    log_in(page, TOKEN)
    page.wait_for_selector("#audit:not([data-state=loading])")
    found = states(page)
    assert refused == [], "it is not asked what only a server with a model could tell"
    assert {found[panel] for panel in ("plans", "shadows", "audit")} == {"no-model"}
    assert {found[panel] for panel in ("prefixes", "namespaces", "hits", "bytes")} == {"empty"}
    assert found["tiers"] == "ready"
    assert "a store alone" in page.inner_text("#facts")


@pytest.mark.parametrize(("largest", "other"), [(OLD, NEW), (NEW, OLD)])
def test_the_largest_model_stands_first_and_prefixes_tell_its_name(
    page: Any, store: Commanded, largest: Namespace, other: Namespace
) -> None:
    store.keep(largest)
    store.keep(other, num_blocks=1)
    shown(page, store.url)
    log_in(page, TOKEN)
    page.wait_for_selector("#prefixes[data-state=ready]")
    assert [name.split()[0] for name in column(page, "namespaces", 1)] == [largest.label, other.label]
    assert column(page, "prefixes", 2) == [largest.label, other.label]


def test_what_is_not_as_it_should_be_is_told_with_its_reason(page: Any, store: Commanded) -> None:
    store.shown("drain", "host")
    shown(page, store.url)
    log_in(page, TOKEN)
    page.wait_for_selector("#tiers[data-state=ready]")
    assert page.inner_text("#health") == "degraded"
    assert "host" in page.inner_text("#notices")
    assert "draining" in page.inner_text("#tiers")


def test_a_server_that_is_gone_leaves_the_last_figures(page: Any, tmp_path: Path) -> None:
    with commanded(tmp_path) as store:
        store.keep(OLD)
        shown(page, store.url)
        log_in(page, TOKEN)
        page.wait_for_selector("#namespaces[data-state=ready]")
    sync_api.expect(page.locator("#health")).to_have_text("no answer", timeout=15_000)
    assert "does not answer" in page.inner_text("#notices")
    assert column(page, "namespaces", 1)[0].startswith("old-model")


def test_what_strangers_named_is_text(page: Any, store: Commanded) -> None:
    store.keep(replace(OLD, label=HOSTILE))
    shown(page, store.url)
    log_in(page, TOKEN)
    page.wait_for_selector("#namespaces[data-state=ready]")
    assert HOSTILE in page.inner_text("#namespaces")
    assert page.locator("main img, main script").count() == 0
    assert page.title() == "prefixd"
