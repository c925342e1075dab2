"""The hit ratio over the capacity as a figure. Needs matplotlib (extra ``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from api.figures import save
from api.simulate.replay import Cell
from api.simulate.run import LOWER_BOUND, OPTIMUM
from api.simulate.trace import Trace

_INCHES = (7.0, 4.8)
_MARKERS = "osD^vP*X"
_BOUND_COLOR = "#555555"


def save_figure(trace: Trace, cells: Sequence[Cell], ttl_s: float | None, file: Path) -> None:
    """Draw a line for each policy between LRU and the optimum. Raises ``ConfigError`` when it cannot."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    axes = figure.subplots()
    curves = {
        policy: sorted(
            (cell.capacity_blocks, cell.token_hit_ratio) for cell in cells if cell.policy == policy
        )
        for policy in dict.fromkeys(cell.policy for cell in cells)
    }
    _draw(axes, curves)
    _label(axes, trace, sorted({cell.capacity_blocks for cell in cells}))
    ttl = "" if ttl_s is None else f", TTL {ttl_s:g} s (not {OPTIMUM})"
    axes.set_title(f"{trace.name}: {len(trace.requests):,} requests{ttl}", fontsize=11)
    save(figure, file)


def _draw(axes: Axes, curves: dict[str, list[tuple[int, float]]]) -> None:
    """Draw from the optimum down to LRU, as they stand in the figure."""
    markers = iter(_MARKERS * len(curves))
    for policy, curve in sorted(curves.items(), key=lambda named: -sum(ratio for _, ratio in named[1])):
        capacities, ratios = zip(*curve, strict=True)
        if policy in {LOWER_BOUND, OPTIMUM}:
            style = "--" if policy == OPTIMUM else ":"
            axes.plot(capacities, ratios, style, color=_BOUND_COLOR, marker=".", label=policy, linewidth=1.8)
        else:
            axes.plot(capacities, ratios, marker=next(markers), markersize=4.5, label=policy)
    if {LOWER_BOUND, OPTIMUM} <= curves.keys():
        capacities, low = zip(*curves[LOWER_BOUND], strict=True)
        high = [ratio for _, ratio in curves[OPTIMUM]]
        axes.fill_between(capacities, low, high, color=_BOUND_COLOR, alpha=0.1, linewidth=0)
    axes.legend(fontsize=9)


def _label(axes: Axes, trace: Trace, capacities: Sequence[int]) -> None:
    axes.set_xscale("log")
    axes.set_xticks(capacities, minor=False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    if len(capacities) > 8:
        axes.tick_params(axis="x", labelrotation=45)
    axes.set_xlabel(f"capacity (blocks of {trace.block_tokens} tokens)")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(bottom=0)
    axes.set_ylabel("prompt tokens hit")
    axes.grid(visible=True, alpha=0.3)
