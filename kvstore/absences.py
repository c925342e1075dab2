"""Why a block is not there: what became of those that left, and which must not come back."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

_MAX_REMEMBERED = 65_536
_MAX_QUARANTINED = 4096


class Cause(Enum):
    """What became of a block. The last thing that happened to it counts."""

    NEVER_STORED = "never stored"
    """Not in this process, as far back as it remembers."""
    EVICTED = "evicted"
    EXPIRED = "expired"
    CORRUPT = "corrupt"
    MISSING = "missing"
    """The medium lost it."""
    QUARANTINED = "quarantined"
    """It was found to be wrong and is not taken again, see ``TieredStore.quarantine``."""
    CLEARED = "cleared"
    """Somebody had it removed."""
    DROPPED = "dropped"
    """It was refused: not admitted, no room, queue full, or the tier was left out for its faults."""
    UNKNOWN_FORM = "unknown form"
    """A tier has it in a form that cannot be read here: another version's, or an unknown codec's."""
    PAUSED = "paused"
    """A tier has it that is left out for its faults at the moment."""
    PRESENT = "present"
    """It is there."""


@dataclass(frozen=True, slots=True)
class Absence:
    """What became of a block: where (``tier``, empty where it does not matter), and when (epoch ms)."""

    cause: Cause
    tier: str = ""
    at_ms: int = 0


class Absences:
    """A bounded memory of departures, the latest of each key. Not thread-safe.

    ``wall_ms`` tells the time. Tiers go by their numbers.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._departures: OrderedDict[bytes, tuple[Cause, int, int]] = OrderedDict()
        self.quarantined: OrderedDict[bytes, None] = OrderedDict()

    def note(self, key: bytes, cause: Cause, bit: int) -> None:
        """Remember that a block left tier ``bit``, and why."""
        if key in self._departures:
            self._departures.move_to_end(key)
        self._departures[key] = cause, bit, self._wall_ms()
        if len(self._departures) > _MAX_REMEMBERED:
            self._departures.popitem(last=False)

    def forget(self, key: bytes) -> None:
        """Forget the departure of a block that is back."""
        self._departures.pop(key, None)

    def get(self, key: bytes) -> tuple[Cause, int, int] | None:
        """Return (cause, tier, epoch ms) of the last departure, if it is remembered."""
        return self._departures.get(key)

    def keeps_out(self, key: bytes, parent: bytes) -> bool:
        """Say whether a block is in quarantine; one that was computed on such a one is from now on."""
        if key not in self.quarantined and parent and parent in self.quarantined:
            self.quarantine(key)
        return key in self.quarantined

    def quarantine(self, key: bytes) -> None:
        """Keep a block out; the oldest of too many may come back."""
        self.quarantined[key] = None
        if len(self.quarantined) > _MAX_QUARANTINED:
            self.quarantined.popitem(last=False)
