"""The dashboard in a Chromium, for the tests of it."""

from __future__ import annotations

from typing import Any

from api.ui.routes import UI_PATH

ALL = ("tiers", "hits", "ttft", "tokens", "bytes", "plans", "prefixes", "namespaces", "shadows", "audit")


def shown(page: Any, url: str) -> Any:
    """Open the dashboard and wait until it shows something."""
    page.goto(f"{url}{UI_PATH}")
    page.wait_for_selector("#login:not([hidden]), #audit:not([data-state=loading])")
    return page


def states(page: Any) -> dict[str, str]:
    return {panel: page.get_attribute(f"#{panel}", "data-state") for panel in ALL}


def log_in(page: Any, token: str) -> None:
    page.fill("#token", token)
    page.press("#token", "Enter")


def column(page: Any, panel: str, at: int) -> list[str]:
    cells: list[str] = page.locator(f"#{panel} tbody tr > :nth-child({at})").all_inner_texts()
    return [cell.strip() for cell in cells]
