"""The same as a figure in a file. Needs matplotlib (extra ``plot``), which is imported with this module."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from api.figures import save
from api.plan.inputs import Question
from api.plan.outlook import Length
from api.quantities import format_rate
from policies.wording import format_seconds

_MOST_COLUMNS = 2
_PANEL_INCHES = (5.2, 3.9)
_COMPUTE, _LOAD, _BOTH = "#7f7f7f", "#1f77b4", "#d62728"


def save_figure(question: Question, lengths: Sequence[Length], file: Path) -> None:
    """Draw one panel for each tier into ``file``. Raises ``ConfigError`` when it cannot be written."""
    tiers = list(question.tiers)
    columns = min(_MOST_COLUMNS, len(tiers))
    rows = math.ceil(len(tiers) / columns)
    size = columns * _PANEL_INCHES[0], rows * _PANEL_INCHES[1] + 0.7
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for panel, tier in zip(panels.flat, tiers, strict=False):
        _draw_tier(panel, question, tier, lengths)
    for unused in panels.flat[len(tiers) :]:
        unused.set_visible(False)
    for panel in panels[:, 0]:
        panel.set_ylabel("time to first token")
    panels[0, 0].legend(fontsize=8)
    figure.suptitle(f"{question.shape.name}, {question.what_computes}")
    save(figure, file)


def _draw_tier(panel: Axes, question: Question, tier: str, lengths: Sequence[Length]) -> None:
    tokens = [length.prompt_tokens for length in lengths]
    outcomes = [length.tiers[tier] for length in lengths]
    both = [outcome.both_s for outcome in outcomes]
    better = [min(outcome.compute_s, outcome.load_s) for outcome in outcomes]
    panel.plot(
        tokens, [outcome.compute_s for outcome in outcomes], "--", color=_COMPUTE, label="computed only"
    )
    panel.plot(tokens, [outcome.load_s for outcome in outcomes], ":", color=_LOAD, label="loaded only")
    panel.plot(tokens, both, "-", marker="o", markersize=3, color=_BOTH, label="both, as planned")
    panel.fill_between(
        tokens, both, better, color=_BOTH, alpha=0.15, linewidth=0, label="saved by doing both"
    )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_seconds(value)))
    panel.set_xlabel("prompt tokens")
    panel.grid(visible=True, alpha=0.3)
    load = question.tiers[tier]
    panel.set_title(
        f"{tier}: {format_rate(load.bytes_per_s)} after {format_seconds(load.latency_s)}", fontsize=10
    )
