"""What the store counts, and what it says about its health."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from threading import Lock


class Count(StrEnum):
    """Everything a tier counts; each event exactly once."""

    LOADS = "loads"
    LOADED_BYTES = "loaded_bytes"
    STORES = "stores"
    STORED_BYTES = "stored_bytes"
    MISSING = "missing"
    """A block the index named was not on the medium."""
    CORRUPT = "corrupt"
    """A block failed verification, was dropped, and counted as a miss."""
    READ_FAULTS = "read_faults"
    WRITE_FAULTS = "write_faults"
    DELETE_FAULTS = "delete_faults"
    LATE_LOADS = "late_loads"
    """A load passed its deadline and was given up by whoever wanted it."""
    REFUSED_LOADS = "refused_loads"
    """A load was not begun: queue full, breaker open, no staging memory, or the block was gone."""
    DROPPED_STORES = "dropped_stores"
    """A store was not begun: queue full, breaker open, no room, or not admitted."""
    EVICTIONS = "evictions"
    EXPIRATIONS = "expirations"
    PROMOTIONS = "promotions"
    BREAKER_OPENINGS = "breaker_openings"


class Counters:
    """Thread-safe counts of one tier."""

    def __init__(self) -> None:
        self._counts: Counter[Count] = Counter()
        self._lock = Lock()

    def add(self, count: Count, amount: int = 1) -> None:
        """Count ``amount`` more."""
        with self._lock:
            self._counts[count] += amount

    def add_transfer(self, count: Count, count_bytes: Count, nbytes: int) -> None:
        """Count one transfer and its bytes."""
        with self._lock:
            self._counts[count] += 1
            self._counts[count_bytes] += nbytes

    def snapshot(self) -> dict[str, int]:
        """Return all counts by name, zeros included."""
        with self._lock:
            return {count.value: self._counts[count] for count in Count}


class State(Enum):
    """How a tier or the whole is, from best to worst."""

    OK = "ok"
    DEGRADED = "degraded"
    UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class TierHealth:
    """A tier's state; ``reason`` is one line, empty when all is well."""

    state: State
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """The worst state of any tier, and each tier's own."""

    state: State
    tiers: dict[str, TierHealth]


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """One tier: its budget, what it holds, and its counts since the start (names of ``Count``)."""

    name: str
    budget_bytes: int
    used_bytes: int
    num_blocks: int
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """All tiers from the fastest, and lookups since the start by block: found or not."""

    tiers: tuple[TierStatistics, ...]
    num_lookups: int
    num_blocks_wanted: int
    num_blocks_found: int
    staging_bytes: int
