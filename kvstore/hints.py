"""What clients and engines say of how a prompt's blocks will be wanted again."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from kvstore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Hint:
    """What is said of a prompt when its answer has ended; nothing of it need be true.

    ``ends_session``: its conversation is over. ``pause_s``: in so many seconds it goes on, ``None``: not
    said. ``stop``: why the answer ended, in the engine's words, ``None``: not said. Raises ``ConfigError``
    for a pause that is none.
    """

    ends_session: bool = False
    pause_s: float | None = None
    stop: str | None = None

    def __post_init__(self) -> None:
        if self.pause_s is not None and not 0 <= self.pause_s < inf:
            raise ConfigError("pause_s", "must be 0 seconds or more")


def hint_of(stop: str | None, *, ends_session: bool, pause_s: float | None) -> Hint | None:
    """Return what to tell of an answer that ended by ``stop``; ``None``: a failed one tells nothing.

    What does not go on has no pause.
    """
    if stop == "error":
        return None
    return Hint(ends_session, None if ends_session else pause_s, stop or None)
