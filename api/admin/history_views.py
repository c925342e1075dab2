"""What is told of the last hour and the last day."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

from api.examples import example

SpanName = Literal["hour", "day"]
Unit = Literal["ratio", "seconds", "tokens", "requests", "blocks", "bytes"]

_SERIES = {"name": "ttft_p50", "unit": "seconds", "label": "disk", "values": [0.125, None]}


class SeriesView(BaseModel):
    """One number over time, with a value for each of the history's times; null: there was nothing to tell of.

    ``label`` is the tier, or the source of tokens, that it is about; null: all of them.
    """

    model_config = example(**_SERIES)

    name: str
    unit: Unit
    label: str | None
    values: list[float | None]


class HistoryView(BaseModel):
    """Samples of a span; ``at`` is when each one's interval ends, the last one's perhaps yet to come."""

    model_config = example(span="hour", interval_s=5, at=[1_767_225_600.0, 1_767_225_605.0], series=[_SERIES])

    span: SpanName
    interval_s: int
    at: list[float]
    series: list[SeriesView]
