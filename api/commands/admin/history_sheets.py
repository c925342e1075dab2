"""How the last hour or day went, as lines of small bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from api.commands.admin.sheets import Answer, Sheet, line, sheet, size, took

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 48
_GAP = " "
_SHOWN: Mapping[str, Callable[[float], str]] = {
    "ratio": lambda value: f"{100 * value:.1f} %",
    "seconds": took,
    "bytes": lambda value: size(round(value)),
}

Values = Sequence[float | None]


def history_sheets(history: Answer, _: float) -> list[Sheet]:
    """Return a line for each series: its last value, its largest, and all of them as bars."""
    if not history["series"]:
        return [line("nothing has been measured yet; ask again in some seconds")]
    rows = (
        (
            one["name"].replace("_", " "), one["label"] or " ", _last(one["values"], one["unit"]),
            _told(max(_known(one["values"])), one["unit"]), bars(one["values"]),
        )
        for one in history["series"]
    )  # fmt: skip
    title = f"the last {history['span']}, {history['interval_s']} s a sample"
    return [sheet("||>last|>most|from the oldest to now", rows, title)]


def bars(values: Values, width: int = _WIDTH) -> str:
    """Return values as a line of bars, at most ``width`` of them; each stands for the largest of some."""
    step = max(1, -(-len(values) // width))
    parts = [_known(values[start : start + step]) for start in range(0, len(values), step)]
    highest = max((value for part in parts for value in part), default=0.0)
    return "".join(_bar(max(part), highest) if part else _GAP for part in parts)


def _bar(value: float, highest: float) -> str:
    share = max(0.0, value) / highest if highest > 0 else 0.0
    return _BARS[round(share * (len(_BARS) - 1))]


def _last(values: Values, unit: str) -> str:
    return _told(_known(values)[-1], unit)


def _known(values: Values) -> list[float]:
    return [value for value in values if value is not None]


def _told(value: float, unit: str) -> str:
    tell = _SHOWN.get(unit)
    return tell(value) if tell else f"{value:.0f}"
