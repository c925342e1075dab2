"""How ``prefixd bench reload`` tells its plan and what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from api.bench.reload_marks import Findings, State, marks_of
from api.bench.reload_plan import NAMED_ARMS, Cell, Known, Trouble, num_requests, round_s
from api.bench.reload_statistics import CellSamples, Sample, mean_ttft_s
from engine_adapter.engine.events import Planned

_COLOURS = {State.MET: "green", State.OPEN: "yellow", State.MISSED: "red"}

_CAPTION = """\
Mean TTFT in seconds, by prompt tokens, rate over break-even and latency. Fixed is the best fixed
split, with the share that it computes; regret is what measured takes beyond it, in percent."""


def cell_name(cell: Cell) -> str:
    """Return a cell in a few words."""
    rate = "unthrottled" if cell.rate is None else f"{cell.rate:g} of break-even"
    batch = f", {cell.concurrency} at once" if cell.concurrency > 1 else ""
    trouble = "" if cell.trouble is Trouble.NONE else f", {cell.trouble.value}"
    return f"{cell.prompt_tokens} tokens, {rate}, {cell.latency_s * 1000:.0f} ms{batch}{trouble}"


def _short_name(cell: Cell) -> str:
    rate = "full" if cell.rate is None else f"{cell.rate:g}x"
    batch = f" of {cell.concurrency}" if cell.concurrency > 1 else ""
    trouble = "" if cell.trouble is Trouble.NONE else f" {cell.trouble.value}"
    return f"{cell.prompt_tokens}{batch} {rate} {cell.latency_s * 1000:.0f} ms{trouble}"


def plan_lines(rounds: Mapping[Cell, int], known: Known) -> Iterator[str]:
    """Yield what will be run, and how long it takes if nothing comes in between."""
    for tokens, compute_s in known.compute_s.items():
        yield f"computing {tokens} tokens takes {compute_s:.3f} s"
    for cell, num in rounds.items():
        yield f"  {cell_name(cell)}: {num} rounds, {num * round_s(cell, known):.0f} s"
    total_s = sum(num * round_s(cell, known) for cell, num in rounds.items())
    yield f"{num_requests(rounds)} requests a policy, {total_s / 60:.1f} min in all"


def result_table(findings: Findings) -> Group:
    """Return mean TTFTs by cell and policy, the regret with its interval, and the marks."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.caption = _CAPTION
    shown.caption_justify = "left"
    shown.add_column("", no_wrap=True)
    for name in ("measured", "load", "compute", "static", "timeout", "fixed", "computes", "regret"):
        shown.add_column(name, justify="right", no_wrap=True)
    for cell, regret in zip(findings.cells, findings.regrets(), strict=True):
        interval = f"{regret.value * 100:.0f} ({regret.low * 100:.0f} to {regret.high * 100:.0f})"
        shown.add_row(_short_name(cell.cell), *_means(cell), interval)
    lines = [
        Text.assemble((f"{mark.state.value:7}", _COLOURS[mark.state]), f"{mark.name}: {mark.figures}")
        for mark in marks_of(findings)
    ]
    return Group(shown, *lines)


def plan_told(cell: Cell, plan: Planned | None, sample: Sample) -> str:
    """Return what was planned for a run of measured costs, and what came of it."""
    if plan is None:
        return f"{cell_name(cell)}: {sample.mean_s:.3f} s without a plan"
    return (
        f"{cell_name(cell)}: {sample.mean_s:.3f} s, predicted {plan.predicted_s:.3f}, "
        f"{plan.num_plans} plans: {plan.reason}"
    )


def _means(samples: CellSamples) -> list[str]:
    runs = samples.runs()
    means = [f"{mean_ttft_s(runs[name]):.3f}" for name in NAMED_ARMS]
    _, own = samples.best_fixed()
    return [*means, f"{mean_ttft_s(own):.3f}", samples.best_fixed()[0].removeprefix("computes ")]
