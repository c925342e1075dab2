"""The one table, in plain text: what was found, what it should reach, and whether it does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.on_gpu.findings import Row
from benchmarks.on_gpu.run import Outcome

_STATES = {None: "", True: "met", False: "MISSED"}


def table_of(outcomes: Sequence[Outcome]) -> str:
    """Return the table of all parts."""
    lines = [line for outcome in outcomes for line in _lines(outcome)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        f"{what:{widths[0]}}  {mark:{widths[1]}}  {state:{widths[2]}}  {value}".rstrip()
        for what, mark, state, value in lines
    )


def heading(outcome: Outcome) -> str:
    """Return a part's outcome in a line."""
    text = f"{outcome.part.name}: {outcome.state}, {outcome.seconds:.1f} s of {outcome.part.budget_s:g}"
    return f"{text}; {outcome.error}" if outcome.error else text


def _lines(outcome: Outcome) -> Iterator[tuple[str, str, str, str]]:
    yield f"== {outcome.part.name}", outcome.state, f"{outcome.seconds:.1f} s", outcome.error
    for row in outcome.findings.rows:
        yield _cells(row)


def _cells(row: Row) -> tuple[str, str, str, str]:
    return row.what, row.mark, _STATES[row.is_met], row.value
