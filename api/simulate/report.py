"""What was hit, as a table for a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from api.simulate.replay import Cell
from api.simulate.run import LOWER_BOUND, OPTIMUM
from api.simulate.trace import Trace
from policies.wording import format_seconds

_HEADINGS = (
    "capacity", "policy", "tokens hit", "blocks hit", "LRU to OPT", "mean blocks", "replay", "mean TTFT",
    "saved",
)  # fmt: skip


def report(trace: Trace, cells: Sequence[Cell]) -> dict[str, Any]:
    """Return the cells as JSON; ratios from 0 to 1, ``seconds`` of the replay."""
    return {"trace": trace.name, "cells": [_cell_body(cell) for cell in cells]}


def _cell_body(cell: Cell) -> dict[str, Any]:
    body = asdict(cell)
    worth = body.pop("worth") or {}
    return {**body, **worth}


def table(trace: Trace, cells: Sequence[Cell], ttl_s: float | None) -> RenderableType:
    """Return one line for each cell, by capacity."""
    by_capacity = sorted(cells, key=lambda cell: cell.capacity_blocks)
    rows = [_row(cell, cells) for cell in by_capacity]
    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, *values in zip(_HEADINGS[: len(rows[0])], *rows, strict=True):
        justify: Literal["left", "right"] = "left" if heading == "policy" else "right"
        shown.add_column(heading, justify=justify, min_width=max(map(len, [*heading.split(), *values])))
    for row, cell, next_cell in zip(rows, by_capacity, [*by_capacity[1:], None], strict=True):
        is_last = next_cell is None or next_cell.capacity_blocks != cell.capacity_blocks
        shown.add_row(*row, end_section=is_last)
    span_s = (trace.requests[-1].at_ms - trace.requests[0].at_ms) / 1000
    what = (
        f"{trace.name}: {len(trace.requests):,} requests in {span_s:,.0f} s, {trace.num_accesses:,} blocks of"
        f" {trace.block_tokens} tokens, {trace.num_blocks:,} {_different(trace)}"
    )
    lines = [what, *trace.notes]
    if ttl_s is not None:
        lines.append(f"TTL: {ttl_s:g} s, but for {OPTIMUM}")
    return Group(*map(Text, lines), shown)


def _different(trace: Trace) -> str:
    has_answers = any(request.answer for request in trace.requests)
    return "different ones with those of answers" if has_answers else "of them different"


def share_of_the_way(cell: Cell, cells: Sequence[Cell]) -> float | None:
    """Return how far a policy gets from LRU to the optimum; ``None``: they are not there, or no way apart."""
    at = {other.policy: other for other in cells if other.capacity_blocks == cell.capacity_blocks}
    if LOWER_BOUND not in at or OPTIMUM not in at:
        return None
    low, high = at[LOWER_BOUND].token_hit_ratio, at[OPTIMUM].token_hit_ratio
    return (cell.token_hit_ratio - low) / (high - low) if high > low else None


def _row(cell: Cell, cells: Sequence[Cell]) -> list[str]:
    share = None if cell.policy in {LOWER_BOUND, OPTIMUM} else share_of_the_way(cell, cells)
    return [
        f"{cell.capacity_blocks:,}",
        cell.policy,
        f"{cell.token_hit_ratio:.2%}",
        f"{cell.block_hit_ratio:.2%}",
        "" if share is None else f"{share:.1%}",
        f"{cell.mean_blocks:,.0f}",
        f"{cell.seconds:.1f} s",
        *((format_seconds(cell.worth.mean_ttft_s), format_seconds(cell.worth.saved_s)) if cell.worth else ()),
    ]
