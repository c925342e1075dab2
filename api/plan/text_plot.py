"""A plot in letters: curves over columns, the height a logarithm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from policies.wording import format_seconds

_HEIGHT = 13
_AXIS_WIDTH = 8
_LEAST_RATIO = 1.05


def draw(curves: Mapping[str, Sequence[float]], labels: Sequence[str]) -> list[str]:
    """Return the lines of a plot; each curve is drawn by its letter, the last on top where they meet.

    Values are seconds above zero, one for each label.
    """
    values = [value for curve in curves.values() for value in curve]
    low, high = math.log(min(values)), math.log(max(*values, min(values) * _LEAST_RATIO))
    width = max(len(label) for label in labels) + 2
    cells = [[" "] * (width * len(labels)) for _ in range(_HEIGHT)]
    for letter, curve in curves.items():
        for column, value in enumerate(curve):
            row = round((math.log(value) - low) / (high - low) * (_HEIGHT - 1))
            cells[_HEIGHT - 1 - row][column * width + width // 2] = letter
    lines = [_axis(index, low, high) + "".join(row).rstrip() for index, row in enumerate(cells)]
    return [*lines, " " * _AXIS_WIDTH + " +" + "".join(label.center(width, "-") for label in labels)]


def _axis(index: int, low: float, high: float) -> str:
    is_marked = index % ((_HEIGHT - 1) // 3) == 0
    value = math.exp(high - (high - low) * index / (_HEIGHT - 1))
    return f"{format_seconds(value) if is_marked else '':>{_AXIS_WIDTH}} |"
