"""What clients say after each request of a trace, for policies that take hints."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from api.simulate.trace import Trace, TracedRequest
from kvstore.hints import Hint, hint_of


class Hints(Enum):
    """Which hints a replay passes on."""

    NONE = "none"
    TRACE = "trace"
    """What the trace says: why an answer ended, and what the client said of its session."""
    HINDSIGHT = "hindsight"
    """That too; and of each session's last request, that it ends the session."""


def hints_of(trace: Trace, told: Hints) -> Sequence[Hint | None] | None:
    """Return the hint of each request, if it has one; ``None``: nothing is told."""
    if told is Hints.NONE:
        return None
    last_of: dict[int | str | None, int] = {}
    if told is Hints.HINDSIGHT:
        last_of = {request.session: number for number, request in enumerate(trace.requests)}
        last_of.pop(None, None)
    last = set(last_of.values())
    return [_hint(request, is_last=number in last) for number, request in enumerate(trace.requests)]


def _hint(request: TracedRequest, *, is_last: bool) -> Hint | None:
    ends_session = request.end_session or is_last
    return hint_of(request.stop, ends_session=ends_session, pause_s=request.expected_pause_s)
