"""Tiers, blocks, prefixes and namespaces, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable

from api.commands.admin.sheets import (
    Answer,
    Sheet,
    ago,
    amounts,
    facts,
    listing,
    share,
    sheet,
    short,
    size,
    until,
)
from api.quantities import format_duration


def overview_sheets(overview: Answer, _: float) -> list[Sheet]:
    """Return the whole in a few numbers."""
    mode = overview["mode"] or "no model is served"
    pairs = [
        ("version", overview["version"]),
        ("up for", format_duration(overview["uptime_s"])),
        ("mode", mode),
        ("namespaces", overview["namespaces"]),
        ("clients", overview["clients"]),
    ]
    return [facts(pairs), _tiers(overview["tiers"])]


def tiers_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return the tiers."""
    return [_tiers(answer["data"])]


def blocks_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return a list of blocks."""
    rows = (
        (
            block["key"], short(block["namespace"]), short(block["tenant"]), block["first_token"],
            size(block["bytes"]), ", ".join(block["tiers"]), ago(block["created_at"], now_s),
            ago(block["last_used_at"], now_s), _first_end(block, now_s), block["num_hits"], _marks(block),
        )
        for block in answer["data"]
    )  # fmt: skip
    columns = "key|namespace|tenant|>from token|>size|tiers|>stored|>used|>ends in|>hits|"
    return listing(answer, columns, rows, "such blocks")


def block_sheets(block: Answer, now_s: float) -> list[Sheet]:
    """Return all that there is to tell of one block."""
    ends = (f"{tier} {until(at_s, now_s)}" for tier, at_s in block["ends_at"].items())
    pins = (f"{tier} {until(at_s, now_s)}" for tier, at_s in block["pinned_until"].items())
    stored = (f"{tier} {size(num)}" for tier, num in block["stored_bytes"].items())
    last = block["first_token"] + block["block_tokens"] - 1 if block["first_token"] is not None else None
    pairs = [
        ("key", block["key"]),
        ("follows", block["parent"] or "nothing: it begins a prompt"),
        ("namespace", block["namespace"]),
        ("tenant", block["tenant"]),
        ("tokens", None if last is None else f"{block['first_token']} to {last}"),
        ("size", size(block["bytes"])),
        ("in", ", ".join(stored)),
        ("unreadable in", ", ".join(block["unreadable"])),
        ("stored", f"{ago(block['created_at'], now_s)} ago"),
        ("used", f"{ago(block['last_used_at'], now_s)} ago"),
        ("ends in", ", ".join(ends)),
        ("hard end in", until(block["hard_ends_at"], now_s)),
        ("pinned for", ", ".join(pins)),
        ("in use by", block["num_holds"]),
        ("hits", f"{block['num_hits']}, the last {ago(block['last_hit_at'], now_s)} ago"),
        ("quarantined", "yes" if block["is_quarantined"] else "no"),
    ]
    return [facts(pairs)]


def resolved_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return the blocks of a prompt, and where they are."""
    rows = (
        (
            block["index"], block["key"], block["first_token"], size(block["bytes"]),
            ", ".join(block["tiers"]) or "nowhere", "pinned" if block["pinned"] else " ",
        )
        for block in answer["data"]
    )  # fmt: skip
    found = sum(bool(block["tiers"]) for block in answer["data"])
    tokens = "" if answer["num_tokens"] is None else f" of {answer['num_tokens']} tokens"
    title = f"{found} of {len(answer['data'])} whole blocks{tokens} are there"
    return [sheet(">block|key|>from token|>size|tiers|", rows, title)]


def prefixes_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return a list of prefixes."""
    rows = (
        (
            prefix["key"], short(prefix["namespace"]), short(prefix["tenant"]), prefix["tokens"],
            prefix["blocks"], size(prefix["bytes"]), prefix["num_hits"], ago(prefix["last_hit_at"], now_s),
            ", ".join(f"{tier} {share(num, prefix['blocks'])}" for tier, num in prefix["tiers"].items()),
        )
        for prefix in answer["data"]
    )  # fmt: skip
    columns = "last block|namespace|tenant|>tokens|>blocks|>size|>hits|>last hit|in"
    return listing(answer, columns, rows, "prefixes")


def namespaces_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return a list of namespaces."""
    rows = (
        (
            space["digest"], space["label"] or "unknown", space["tenant"], amounts(space["tiers"]),
            _sizes(space["budget"].items()), space["num_hits"], ago(space["last_used_at"], now_s),
            ago(space["last_hit_at"], now_s),
        )
        for space in answer["data"]
    )  # fmt: skip
    return listing(answer, "digest|model|tenant|has|may have|>hits|>used|>last hit", rows, "namespaces")


def _tiers(tiers: Iterable[Answer]) -> Sheet:
    rows = (
        (
            tier["name"], tier["blocks"], size(tier["bytes"]), size(tier["budget_bytes"]),
            share(tier["bytes"], tier["budget_bytes"]), size(tier["pinned_bytes"]), tier["policy"],
            tier["state"] + (", draining" if tier["is_draining"] else ""), tier["reason"] or " ",
        )
        for tier in tiers
    )  # fmt: skip
    return sheet("tier|>blocks|>holds|>may hold|>full|>pinned|policy|state|", rows)


def _first_end(block: Answer, now_s: float) -> str:
    ends = [at_s for at_s in (*block["ends_at"].values(), block["hard_ends_at"]) if at_s is not None]
    return until(min(ends, default=None), now_s)


def _marks(block: Answer) -> str:
    marks = {
        "pinned": block["pinned_until"],
        "in use": block["num_holds"],
        "quarantined": block["is_quarantined"],
    }
    return ", ".join(mark for mark, holds in marks.items() if holds) or " "


def _sizes(held: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{tier} {size(num)}" for tier, num in held)
