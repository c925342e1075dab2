"""The administration where a model is served: prompts name blocks, and each tenant its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from tests.api.admin_rig import FILE, TOKENS, Rig

MODEL = "tiny-llama"
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4
SELECTED = {"selection": {"prompt": PROMPT}}


@pytest.fixture(scope="module")
def serving(
    make_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """Yield a server with tenants of which each may pin some, and its settings."""
    folder = tmp_path_factory.mktemp("tenants")
    tokens, rules = folder / "tokens.toml", folder / "rules.toml"
    tokens.write_text(FILE)
    rules.write_text('[others]\npin_bytes = "1MiB"\n')
    settings = make_settings(api_token=TOKENS["operator"], tokens=tokens, retention=rules)
    with closing(assemble(serving_config(settings))) as serving:
        yield serving, settings


@pytest.fixture
def rig(serving: tuple[Serving, Settings], tmp_path: Path) -> Iterator[Rig]:
    served, settings = serving
    served.engine.flush()
    served.engine.clear_pool()
    served.store.clear()
    app = create_app(served, settings)
    with TestClient(app) as client:
        yield Rig(app, client, served.store, tmp_path)


def complete(rig: Rig, who: str, **fields: Any) -> int:
    """Have a prompt completed; returns how many of its tokens were not computed."""
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, **fields}
    usage = rig.ok(who, "POST", "/v1/completions", json=body)["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_a_prompt_is_resolved_to_its_blocks(rig: Rig) -> None:
    before = rig.ok("operator", "POST", "/admin/resolve", json=SELECTED)
    assert before["num_tokens"] == 57
    assert [block["tiers"] for block in before["data"]] == [[]] * 3
    complete(rig, "operator")
    after = rig.ok("operator", "POST", "/admin/resolve", json=SELECTED)["data"]
    assert [block["index"] for block in after] == [0, 1, 2]
    assert [block["first_token"] for block in after] == [0, 16, 32]
    assert after[0]["tiers"][0] == "device"


def test_a_chat_is_resolved_as_it_is_served(rig: Rig) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    rig.ok(
        "operator",
        "POST",
        "/v1/chat/completions",
        json={"model": MODEL, "messages": messages, "max_tokens": 1},
    )
    found = rig.ok("operator", "POST", "/admin/resolve", json={"selection": {"messages": messages}})
    assert all(block["tiers"] for block in found["data"])


def test_a_prompt_that_was_just_computed_is_pinned_and_stays(rig: Rig) -> None:
    complete(rig, "acme")
    pinned = rig.ok("acme", "POST", "/admin/pins", json={**SELECTED, "for_s": 600.0})
    assert (pinned["blocks"], pinned["absent"]) == ({"host": 3, "disk": 3}, [])
    assert rig.ok("acme", "POST", "/admin/evict", json={**SELECTED, "dry_run": True})["leaves"] == {}
    assert rig.ok("acme", "POST", "/admin/unpin", json=SELECTED) == {"blocks": 6}


def test_warming_a_prompt_computes_what_no_tier_has(rig: Rig) -> None:
    said = rig.ok("operator", "POST", "/admin/warm", json={**SELECTED, "dry_run": True})
    assert said["computed"] == 3
    assert rig.done("operator", "POST", "/admin/warm", json=SELECTED)["computed"] == 3
    tiers = [block["tiers"] for block in rig.ok("operator", "POST", "/admin/resolve", json=SELECTED)["data"]]
    assert all("host" in one for one in tiers)
    assert rig.done("operator", "POST", "/admin/warm", json=SELECTED)["computed"] == 0
    assert complete(rig, "operator") == 48


def test_warming_a_prompt_brings_back_what_the_engines_own_pool_alone_has(rig: Rig) -> None:
    complete(rig, "operator")
    rig.done("operator", "POST", "/admin/evict", json=SELECTED)
    assert rig.ok("operator", "POST", "/admin/warm", json={**SELECTED, "dry_run": True})["computed"] == 3
    assert rig.done("operator", "POST", "/admin/warm", json=SELECTED)["computed"] == 3
    tiers = [block["tiers"] for block in rig.ok("operator", "POST", "/admin/resolve", json=SELECTED)["data"]]
    assert tiers == [["device", "host", "disk"]] * 3


def test_a_prompt_goes_through_a_file_and_is_not_computed_again(rig: Rig) -> None:
    complete(rig, "operator")
    file = rig.call("operator", "POST", "/admin/export", json=SELECTED).content
    rig.done("operator", "POST", "/admin/clear", json={})
    assert complete(rig, "operator") == 0
    rig.done("operator", "POST", "/admin/clear", json={})
    assert rig.done("operator", "POST", "/admin/import", content=file)["stored"] == 3
    assert complete(rig, "operator") == 48


def test_clearing_all_clears_the_engines_own_pool_too(rig: Rig) -> None:
    complete(rig, "operator")
    assert rig.done("operator", "POST", "/admin/clear", json={"tier": "device"})["blocks"] >= 3
    assert complete(rig, "operator") == 48  # from the tiers below
    rig.done("operator", "POST", "/admin/clear", json={})
    assert complete(rig, "operator") == 0


def test_case_19_a_prompt_is_no_hit_for_another_tenant_or_with_another_salt(rig: Rig) -> None:
    assert complete(rig, "operator") == 0
    assert complete(rig, "operator", cache_salt="a") == 0
    assert complete(rig, "operator", cache_salt="a") == 48
    assert complete(rig, "operator") == 48
    for who in ("acme", "zeno"):
        assert complete(rig, who) == 0
        assert complete(rig, who, cache_salt="a") == 0
        assert complete(rig, who) == 48
    rig.done("operator", "POST", "/admin/clear", json={"tier": "device"})
    assert complete(rig, "zeno", cache_salt="b") == 0
    assert complete(rig, "zeno", cache_salt="a") == 48


def test_each_tenant_is_told_of_its_own_blocks_plans_and_explanations(rig: Rig) -> None:
    complete(rig, "acme")
    own = rig.ok("acme", "POST", "/admin/resolve", json=SELECTED)["data"]
    others = rig.ok("zeno", "POST", "/admin/resolve", json=SELECTED)["data"]
    assert [bool(block["tiers"]) for block in (own[0], others[0])] == [True, False]
    assert own[0]["key"] != others[0]["key"]
    assert rig.ok("acme", "POST", "/admin/explain", json={"prompt": PROMPT})["miss"] is None
    assert rig.ok("zeno", "POST", "/admin/explain", json={"prompt": PROMPT})["miss"]["differences"] == []
    latest = rig.ok("acme", "GET", "/admin/plans")["data"][0]["number"]
    assert latest not in {plan["number"] for plan in rig.ok("zeno", "GET", "/admin/plans")["data"]}
    assert rig.ok("operator", "GET", "/admin/plans")["data"][0]["number"] == latest


def test_neither_log_nor_answers_hold_the_prompt_or_the_salt(rig: Rig) -> None:
    selected = {"selection": {"prompt": PROMPT, "cache_salt": "a very secret salt"}}
    rig.call("operator", "POST", "/admin/warm", json=selected)
    rig.call("operator", "POST", "/admin/evict", json={**selected, "tiers": ["tape"]})
    rig.call("operator", "POST", "/admin/unpin", json=selected)
    told = rig.call("operator", "GET", "/admin/log").text + rig.call("operator", "GET", "/admin/jobs").text
    assert "POST /admin/unpin" in told
    assert "cat sat" not in told
    assert "secret" not in told


def test_odd_prompts_are_refused_as_requests_are(rig: Rig) -> None:
    for selection, param in (
        ({"prompt": "a"}, "selection"),
        ({"prompt": [70_000]}, "prompt"),
        ({"prompt": PROMPT, "cache_salt": "x" * 10_000}, "cache_salt"),
        ({"messages": []}, "selection.messages"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages[0].tool_calls"),
    ):
        answer = rig.call("operator", "POST", "/admin/resolve", json={"selection": selection})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    unknown = {"prompt": PROMPT, "model": "poet"}
    answer = rig.call("operator", "POST", "/admin/resolve", json={"selection": unknown})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
