"""Pins, quotas and what drains, as tables for people."""

from __future__ import annotations

from api.commands.admin.sheets import Answer, Sheet, blocks, facts, listing, share, sheet, short, size, until


def pins_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return a list of pins."""
    rows = (
        (short(pin["tenant"]), pin["tier"], until(pin["until"], now_s), pin["blocks"], size(pin["bytes"]))
        for pin in answer["data"]
    )
    return listing(answer, "tenant|tier|>ends in|>blocks|>size", rows, "pins")


def pinned_sheets(pinned: Answer, now_s: float) -> list[Sheet]:
    """Return what was pinned."""
    held = ", ".join(f"{tier} {blocks(num)}" for tier, num in pinned["blocks"].items())
    pairs = [
        ("pinned", held or "nothing"),
        ("for", until(pinned["until"], now_s)),
        ("charged", f"{size(pinned['charged_bytes'])} to {short(pinned['tenant'])}"),
        ("not there", blocks(len(pinned["absent"]))),
    ]
    return [facts(pairs)]


def changed_sheets(changed: Answer, _: float) -> list[Sheet]:
    """Return how many blocks were changed, and how many were not there."""
    pairs = [("changed", blocks(changed["blocks"]))]
    if changed.get("absent"):
        pairs.append(("not there", blocks(len(changed["absent"]))))
    return [facts(pairs)]


def quotas_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return who may have how much."""
    return [sheet("tenant|tier|>has|>may have|>used|>blocks", _quota_rows(answer["data"]))]


def quota_sheets(quota: Answer, _: float) -> list[Sheet]:
    """Return one tenant's quotas."""
    return quotas_sheets({"data": [quota]}, 0.0)


def budget_sheets(budget: Answer, _: float) -> list[Sheet]:
    """Return what a namespace may have."""
    told = ((tier, size(num)) for tier, num in budget["tiers"].items())
    return [sheet("tier|>may have", told, f"namespace {budget['digest']}")]


def draining_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return the tiers that take no blocks."""
    return [facts([("draining", ", ".join(answer["draining"]) or "none")])]


def _quota_rows(quotas: list[Answer]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for quota in quotas:
        tenant = quota["tenant"]
        for tier, use in quota["tiers"].items():
            has, may = use["used_bytes"], use["quota_bytes"]
            rows.append((tenant, tier, size(has), size(may), share(has, may), use["blocks"]))
        pinned, may = quota["pinned_bytes"], quota["pin_bytes"]
        rows.append((tenant, "pins", size(pinned), size(may), share(pinned, may), None))
    return rows
