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
