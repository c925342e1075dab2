"""What is to be expected, as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from api.plan.inputs import Question
from api.plan.outlook import Length, Outcome
from api.plan.text_plot import draw
from api.quantities import format_bytes, format_rate
from policies.wording import format_seconds

_NEVER = "never"
_SPLIT_CELLS = 16


def summary(question: Question, lengths: Sequence[Length]) -> str:
    """Return what was assumed, and one table over all tiers: the expected TTFT and what of it is loaded."""
    headings = ["prompt", "computed", "break-even", *question.tiers]
    rows = [_summary_row(length) for length in lengths]
    return "\n".join([*_assumed(question), "", *_columns(headings, rows)])


def details(question: Question, tier: str, lengths: Sequence[Length]) -> str:
    """Return one tier's table (the ways to go, the split) and its plot."""
    outcomes = [length.tiers[tier] for length in lengths]
    headings = ["prompt", "compute", "load", "both", "of better", "computed", "loaded", "split"]
    rows = [_detail_row(length, outcome) for length, outcome in zip(lengths, outcomes, strict=True)]
    curves = {
        "c": [outcome.compute_s for outcome in outcomes],
        "l": [outcome.load_s for outcome in outcomes],
        "*": [outcome.both_s for outcome in outcomes],
    }
    labels = [str(length.prompt_tokens) for length in lengths]
    plot = draw(curves, labels) if len(lengths) > 1 else []
    legend = ["TTFT over prompt tokens: c computed, l loaded, * both as planned"] if plot else []
    return "\n".join([f"{tier}: {_line(question, tier)}", "", *_columns(headings, rows), "", *legend, *plot])


def _assumed(question: Question) -> Iterator[str]:
    shape, compute = question.shape, question.server.compute
    token = f"{format_bytes(shape.token_bytes)} of keys and values a token ({shape.kv_dtype})"
    yield f"{shape.name}: {shape.parameters / 1e9:.3g} billion parameters a token, {token}"
    last = question.lengths[-1]
    mean = last / compute.prefill_s(0, last, question.server.chunk_tokens)
    yield f"{question.what_computes}: {mean:,.0f} tokens/s over a prompt of {last}"
    for tier in question.tiers:
        yield f"{tier}: {_line(question, tier)}"


def _line(question: Question, tier: str) -> str:
    load, what = question.tiers[tier], question.what_loads[tier]
    return f"{format_rate(load.bytes_per_s)} after {format_seconds(load.latency_s)} ({what})"


def _summary_row(length: Length) -> list[str]:
    cells = [_summary_cell(outcome, length.prompt_tokens) for outcome in length.tiers.values()]
    return [
        str(length.prompt_tokens),
        format_seconds(length.compute_s),
        _break_even(length.break_even_bytes_per_s),
        *cells,
    ]


def _summary_cell(outcome: Outcome, prompt_tokens: int) -> str:
    return f"{format_seconds(outcome.both_s)} {outcome.loaded_tokens / prompt_tokens:4.0%}"


def _detail_row(length: Length, outcome: Outcome) -> list[str]:
    num_computed = round(_SPLIT_CELLS * outcome.computed_tokens / length.prompt_tokens)
    return [
        str(length.prompt_tokens),
        format_seconds(outcome.compute_s),
        format_seconds(outcome.load_s),
        format_seconds(outcome.both_s),
        f"{outcome.of_better:.2f}",
        str(outcome.computed_tokens),
        str(outcome.loaded_tokens),
        "=" * num_computed + "<" * (_SPLIT_CELLS - num_computed),
    ]


def _break_even(bytes_per_s: float | None) -> str:
    return _NEVER if bytes_per_s is None else format_rate(bytes_per_s)


def _columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table, every column as wide as its widest cell and to the right."""
    table = [headings, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(headings))]
    for row in table:
        yield "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
