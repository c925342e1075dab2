"""What a server decided and why, for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from api.quantities import format_rate
from kvstore.tier import DEVICE
from policies.wording import format_seconds

_WIDTH = 88
_MODES_WITHOUT_LOADS = ("off", "observe")  # their plan is what mode serve would do
_CHOSEN = {
    "load": "load all that can be loaded",
    "compute": "compute everything",
    "both": "compute the head, load the tail",
}


def account_text(account: Mapping[str, Any], now_s: float) -> str:
    """Return what was decided about a request that has ended, some time before ``now_s`` (epoch)."""
    age = format_seconds(max(0.0, now_s - account["ended_at"]))
    plan = account["plan"]
    title = f"request {account['number']}, ended {age} ago ({account['ended']})"
    lines = [_title(title, account, plan), "", *_sentence(account["reason"]), ""]
    if plan is not None:
        lines += [*_table(_alternatives(plan, account["mode"])), ""]
    sources = _tokens(account["tokens_by_source"])
    lines.append(f"tokens came from: {sources}" if sources else "no token was reached")
    if plan is not None:
        lines.append(f"could be loaded:  {_tokens(plan['tokens_by_tier'])}")
    if account["ttft_s"] is not None:
        lines.append(f"first token:      {format_seconds(account['ttft_s'])} after submission")
    return "\n".join([*lines, *_miss(account["miss"] if plan else None)])


def explanation_text(explained: Mapping[str, Any]) -> str:
    """Return what would be done with a prompt."""
    plan = explained["plan"]
    lines = [_title("a prompt that was not run", explained, plan), "", *_sentence(explained["reason"]), ""]
    lines += [*_table(_alternatives(plan, explained["mode"])), ""]
    found = _tokens(plan["tokens_by_tier"])
    lines.append(f"found: {found}" if found else "found: nothing")
    lines += [f"  {line}" for line in _runs(explained)]
    lines += [f"{tier}: {_cost(cost)}" for tier, cost in explained["costs"].items()]
    return "\n".join([*lines, *_miss(explained["miss"])])


def _title(what: str, told: Mapping[str, Any], plan: Mapping[str, Any] | None) -> str:
    policy = f", policy {plan['policy']}" if plan else ""
    return f"{what}: {told['prompt_tokens']} tokens, mode {told['mode']}{policy}"


def _sentence(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="  ", subsequent_indent="  ")


def _alternatives(plan: Mapping[str, Any], mode: str) -> Iterator[tuple[str, str]]:
    """Yield each way to go, with the seconds to the first token from the moment of planning."""
    chosen = plan["chosen"]
    chosen_by = "mode serve" if mode in _MODES_WITHOUT_LOADS else "chosen"
    yield f"{chosen_by}: {_CHOSEN[chosen]}", format_seconds(plan["predicted_ttft_s"])
    if chosen != "compute":
        yield _CHOSEN["compute"], format_seconds(plan["if_computed_s"])
    if chosen != "load" and plan["tokens_by_tier"].keys() - {DEVICE}:
        yield _CHOSEN["load"], format_seconds(plan["if_loaded_s"])
    if plan.get("actual_s") is not None:
        yield "measured", format_seconds(plan["actual_s"])


def _table(rows: Iterator[tuple[str, str]]) -> list[str]:
    shown = [("", "first token after"), *rows]
    widths = [max(len(row[column]) for row in shown) for column in (0, 1)]
    return [f"  {label:<{widths[0]}}  {value:>{widths[1]}}".rstrip() for label, value in shown]


def _tokens(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {source}" for source, count in counts.items() if count)


def _runs(explained: Mapping[str, Any]) -> Iterator[str]:
    step = explained["block_tokens"]
    for run in explained["blocks"]:
        first, end = run["first_block"] * step, (run["first_block"] + run["num_blocks"]) * step
        yield f"tokens {first} to {end - 1}: {run['tier'] or 'nowhere'}, {run['choice']}"


def _cost(cost: Mapping[str, float]) -> str:
    queue = f", {format_seconds(cost['queue_s'])} for what is on its way" if cost["queue_s"] else ""
    return f"{format_seconds(cost['latency_s'])}, then {format_rate(cost['bytes_per_s'])}{queue}"


def _miss(miss: Mapping[str, Any] | None) -> Sequence[str]:
    if miss is None:
        return ()
    return textwrap.wrap(f"first miss: {miss['sentence']}", _WIDTH, subsequent_indent="  ")
