"""How the server did over time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from api.admin.context import AdminContext, Shared
from api.admin.history_views import HistoryView, SeriesView, SpanName
from api.error_schema import errors
from api.history import SPANS
from api.history_readings import series_of
from api.tenancy import Overseer

router = APIRouter(prefix="/admin", tags=["overview"])

After = Annotated[float, Query(ge=0, le=1e11, allow_inf_nan=False)]


@router.get("/history", responses=errors(403, 429))
async def get_history(
    context: Shared, _: Overseer, span: Annotated[SpanName, Query()] = "hour", after: After = 0.0
) -> HistoryView:
    """Tell how the last hour or day went, as far as it came ``after`` a time: hit ratio, TTFT, bytes."""
    return await context.threads.run(lambda: _history(context, span, after))


def _history(context: AdminContext, span: SpanName, after: float) -> HistoryView:
    samples = context.history.samples(span, after)
    return HistoryView(
        span=span,
        interval_s=next(one.interval_s for one in SPANS if one.name == span),
        at=[sample.at_s for sample in samples],
        series=[SeriesView.model_validate(asdict(series)) for series in series_of(samples)],
    )
