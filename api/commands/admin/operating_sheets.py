"""Settings and the log, as tables for people."""

from __future__ import annotations

from api.commands.admin.sheets import Answer, Sheet, ago, listing, sheet, short, size


def config_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return all settings."""
    rows = ((one["name"], _value(one), " " if one["is_default"] else "set") for one in answer["data"])
    return [sheet("setting|value|", rows)]


def log_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return what was done by whom."""
    rows = (
        (
            f"{ago(entry['at'], now_s)} ago", entry["who"], short(entry["tenant"]), entry["action"],
            ", ".join(f"{name} {_what(value)}" for name, value in entry["on"].items()), entry["outcome"],
            entry["job"],
        )
        for entry in answer["data"]
    )  # fmt: skip
    return listing(answer, "when|who|tenant|action|on|outcome|job", rows, "administrative actions")


def _what(value: object) -> object:
    if isinstance(value, dict):
        return " ".join(f"{name}={_what(one)}" for name, one in value.items()) or "all"
    return ", ".join(map(str, value)) if isinstance(value, list) else "none" if value is None else value


def _value(setting: Answer) -> object:
    value = setting["value"]
    if isinstance(value, int) and setting["name"].endswith("_bytes"):
        return size(value)
    return "none" if value in (None, {}) else value
