"""The dashboard, clicked through in a Chromium without a window, on real servers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.history_readings import serving_reading
from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from tests.api.dashboard import ALL, column, shown, states
from tests.api.live import live

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

OVER_TIME = ("ttft", "tokens", "bytes")
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4


@dataclass
class Served:
    """A server with a model, and requests that it has answered."""

    url: str
    app: FastAPI
    serving: Serving

    def complete(self, **fields: Any) -> None:
        body = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, **fields}
        httpx.post(f"{self.url}/v1/completions", json=body, timeout=60).raise_for_status()

    def sample(self, after_s: float) -> None:
        """Have the history take note of what there is, as if some seconds from now."""
        reading = serving_reading(self.serving.engine.statistics(), self.serving.store.statistics())
        self.app.state.admin.history.add(reading, round((time.time() + after_s) * 1000))


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(reload_policy="always-load")


@pytest.fixture(scope="module")
def served(settings: Settings) -> Iterator[Served]:
    with closing(assemble(serving_config(settings, is_watched=True))) as serving:
        app = create_app(serving, settings)
        with live(app) as url:
            served = Served(url, app, serving)
            for number in range(4):
                served.complete(prompt=f"{PROMPT} {number % 2}", cache_salt="b" if number == 1 else None)
                served.sample(10 * number)
            serving.engine.flush()
            serving.engine.clear_pool()
            served.complete()
            served.sample(50)
            yield served


def test_every_panel_shows_what_the_server_tells(page: Any, served: Served) -> None:
    shown(page, served.url)
    assert states(page) == dict.fromkeys(ALL, "ready")
    overview = httpx.get(f"{served.url}/admin/overview").json()
    assert page.locator("#tiers h3").all_inner_texts() == [tier["name"] for tier in overview["tiers"]]
    assert page.inner_text("#health") == "ok"
    assert "mode serve" in page.inner_text("#facts")
    plans = httpx.get(f"{served.url}/admin/plans?limit=12").json()["data"]
    assert column(page, "plans", 1) == [str(plan["number"]) for plan in plans]
    assert column(page, "plans", 8)[0] == plans[0]["reason"]
    assert "→" in column(page, "plans", 6)[0]
    assert page.locator("#shadows .policy.live").count() == 2
    assert "tiny-llama" in page.inner_text("#namespaces tbody")
    assert page.locator("#hits .legend").inner_text().startswith("hit ratio")
    assert set(page.locator("#tokens .legend").inner_text().split()) >= {"computed", "host"}


def test_tables_are_sorted_by_their_headings(page: Any, served: Served) -> None:
    shown(page, served.url)
    heading = page.locator("#plans thead th").nth(0)
    assert heading.get_attribute("aria-sort") == "none"
    newest_first = column(page, "plans", 1)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(page, "plans", 1) == newest_first
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "plans", 1) == newest_first[::-1]
    assert page.inner_text("#announce") == "Recent plans: sorted by Request, ascending"
    assert page.evaluate("document.activeElement.textContent") == "Request"


def test_largest_hottest_and_latest_prefixes_are_chosen(page: Any, served: Served) -> None:
    shown(page, served.url)
    for by, name in (("hits", "Hottest"), ("recent", "Latest"), ("bytes", "Largest")):
        with page.expect_response(lambda answer, by=by: f"by={by}" in answer.url):
            page.get_by_role("button", name=name).click()
        assert page.locator('[data-by][aria-pressed="true"]').all_inner_texts() == [name]
        page.wait_for_selector("#prefixes[data-state=ready]")
    told = httpx.get(f"{served.url}/admin/prefixes?by=bytes&limit=10").json()["data"]
    assert column(page, "prefixes", 1) == [prefix["key"][:12] for prefix in told]


def test_the_namespaces_of_a_model_unfold(page: Any, served: Served) -> None:
    shown(page, served.url)
    unfold, rows = page.get_by_role("button", name="2 namespaces"), page.locator("#namespaces tbody tr")
    assert (unfold.get_attribute("aria-expanded"), rows.count()) == ("false", 1)
    unfold.press("Enter")
    assert (unfold.get_attribute("aria-expanded"), rows.count()) == ("true", 3)


def test_a_day_is_shown_instead_of_an_hour(page: Any, served: Served) -> None:
    shown(page, served.url)
    with page.expect_response(lambda answer: "span=day" in answer.url):
        page.get_by_role("button", name="Day").click()
    assert page.locator('[data-span][aria-pressed="true"]').all_inner_texts() == ["Day"]


def test_new_figures_come_by_themselves_unless_it_is_paused(page: Any, served: Served) -> None:
    page.clock.install()
    shown(page, served.url)
    newest = page.locator("#plans tbody th").first
    before = int(newest.inner_text())
    served.complete()
    page.clock.run_for(5_000)
    sync_api.expect(newest).to_have_text(str(before + 1))
    page.get_by_role("button", name="Pause").click()
    sync_api.expect(page.locator("#pause")).to_have_text("Paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(30_000)
    assert asked == []


def test_it_is_used_with_a_keyboard_alone(page: Any, served: Served) -> None:
    shown(page, served.url)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().top") >= 0
    names: list[str] = []
    while len(names) < 80 and not (names and names[-1].startswith("openapi")):
        page.keyboard.press("Tab")
        text, outline, chart = page.evaluate("""() => {
            const one = document.activeElement;
            return [one.textContent.trim(), getComputedStyle(one).outlineStyle, one.dataset.chart];
        }""")
        assert outline == "solid", text
        names.append(chart or text)
    assert names[:4] == ["Hour", "Day", "Pause", "Theme: system"]
    assert [name for name in names if name in ALL] == ["hits", "ttft", "tokens", "bytes"]
    assert {"Request", "Why", "Hottest", "Model"} <= set(names)


def test_arrow_keys_go_through_a_chart(page: Any, served: Served) -> None:
    shown(page, served.url)
    page.focus("[data-chart=hits]")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    told = page.inner_text("#announce")
    assert re.fullmatch(r"hit ratio (\d+ %|\u2013), at \d\d:\d\d:\d\d", told), told
    page.keyboard.press("Home")
    assert page.inner_text("#announce") != told
    assert "Hit ratio. hit ratio: now " in page.get_attribute("[data-chart=hits]", "aria-label")


def test_what_is_stacked_begins_at_nothing_and_lines_far_apart_are_told_apart(
    page: Any, served: Served
) -> None:
    def series(name: str, *values: float) -> dict[str, Any]:
        return {"name": name, "label": "disk", "unit": "", "values": values}

    told = [series(name, 1.0, 1e9, 3e9) for name in ("prompt_tokens", "loaded_bytes")]
    told.append(series("ttft_p50", 0.0002, 1.0, 300.0))
    history = {"span": "hour", "interval_s": 5, "at": [5.0, 10.0, 15.0], "series": told}
    page.route("**/admin/history**", lambda route: route.fulfill(json=history))
    shown(page, served.url)
    ticks = {panel: page.locator(f"#{panel} .chart .tick").all_text_contents() for panel in OVER_TIME}
    assert ticks["tokens"] == ["0", "200M", "400M", "600M"]
    assert ticks["bytes"] == ["0 B/s", "200 MiB/s", "400 MiB/s", "600 MiB/s"]
    assert ticks["ttft"] == ["100 \u00b5s", "1 ms", "10 ms", "100 ms", "1 s", "10 s", "100 s", "17 min"]
    edges = page.locator(".chart text").evaluate_all(
        "all => all.map(one => [one.getBBox().x, one.textContent])"
    )
    assert min(edges)[0] >= 0, min(edges)


def luminance(colour: str) -> float:
    """Return how light a colour is, from 0 to 1, as WCAG has it."""
    parts = [int(colour.strip("# ")[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    red, green, blue = linear
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(page: Any, *names: str) -> float:
    """Return the contrast of two of the theme's colours."""
    script = "name => getComputedStyle(document.documentElement).getPropertyValue(name)"
    darker, lighter = sorted(luminance(page.evaluate(script, name)) for name in names)
    return (lighter + 0.05) / (darker + 0.05)


def test_it_is_readable_in_the_dark_and_in_the_light(page: Any, served: Served) -> None:
    shown(page, served.url)
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        sync_api.expect(page.locator("html")).to_have_attribute("data-theme", theme)
        for ink in ("--ink", "--soft", "--accent", "--good", "--warn", "--bad"):
            for paper in ("--paper", "--card"):
                assert contrast(page, ink, paper) >= 4.5, (theme, ink, paper)
        for source in ("--computed", "--device", "--host", "--disk", "--redis", "--other"):
            assert contrast(page, source, "--card") >= 3, (theme, source)


def test_a_theme_that_was_chosen_stays(page: Any, served: Served) -> None:
    shown(page, served.url)
    button = page.locator("#theme")
    for wanted in ("light", "dark"):
        button.click()
        assert (button.inner_text(), page.get_attribute("html", "data-theme")) == (f"Theme: {wanted}", wanted)
    page.reload()
    assert page.get_attribute("html", "data-theme") == "dark"
    button.click()
    assert button.inner_text() == "Theme: system"


def test_one_panel_that_fails_leaves_the_others(page: Any, served: Served) -> None:
    broken = {"error": {"message": "the server failed; its log says where", "code": "internal_error"}}
    page.route("**/admin/prefixes**", lambda route: route.fulfill(status=500, json=broken))
    shown(page, served.url)
    assert states(page) == {**dict.fromkeys(ALL, "ready"), "prefixes": "error"}
    assert "the server failed" in page.inner_text("#prefixes")


def test_the_page_may_run_nothing_but_its_own_script(browser: Any, served: Served) -> None:
    context = browser.new_context()
    page = shown(context.new_page(), served.url)
    for forbidden in ("document.body.innerHTML = '<b>x</b>'", "trustedTypes.createPolicy('loophole', {})"):
        script = f"() => {{ try {{ {forbidden}; return 'ran'; }} catch (error) {{ return error.name; }} }}"
        assert page.evaluate(script) == "TypeError", forbidden
    context.close()
