"""What the store counts, and what it says about its health."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from threading import Lock
from typing import Final


class Count:
    """The names of everything a tier counts; each event exactly once."""

    LOADS: Final = "loads"
    LOADED_BYTES: Final = "loaded_bytes"
    STORES: Final = "stores"
    STORED_BYTES: Final = "stored_bytes"
    MISSING: Final = "missing"
    """A block the index named was not on the medium."""
    CORRUPT: Final = "corrupt"
    """A block failed verification, was dropped, and counted as a miss."""
    UNKNOWN_FORM: Final = "unknown_form"
    """A block was in a form of another version or of a codec that is not known here: a miss, left alone."""
    READ_FAULTS: Final = "read_faults"
    WRITE_FAULTS: Final = "write_faults"
    DELETE_FAULTS: Final = "delete_faults"
    LATE_LOADS: Final = "late_loads"
    """A load passed its deadline and was given up by whoever wanted it."""
    REFUSED_LOADS: Final = "refused_loads"
    """A load was not begun: queue full, breaker open, no staging memory, or the block was gone."""
    INQUIRIES: Final = "inquiries"
    """A shared medium was asked what it holds, and answered."""
    LATE_INQUIRIES: Final = "late_inquiries"
    """An inquiry passed its deadline and was given up."""
    REFUSED_INQUIRIES: Final = "refused_inquiries"
    """An inquiry was not begun: queue full or breaker open."""
    FOUND_BLOCKS: Final = "found_blocks"
    """A block that others stored on a shared medium was entered."""
    DROPPED_STORES: Final = "dropped_stores"
    """A store was not begun: queue full, breaker open, no room, draining, or not admitted for its size."""
    OVER_QUOTA: Final = "over_quota"
    """A block was not taken because its tenant's or namespace's quota had no room for it."""
    NOT_WORTH_STORING: Final = "not_worth_storing"
    """A block was not taken because loading it from there could never be faster than computing it."""
    EVICTIONS: Final = "evictions"
    EXPIRATIONS: Final = "expirations"
    PROMOTIONS: Final = "promotions"
    AMENDED_HEADERS: Final = "amended_headers"
    """A header was brought in line with how long its block lives."""
    AMEND_FAULTS: Final = "amend_faults"
    BREAKER_OPENINGS: Final = "breaker_openings"

    ALL: Final = (
        LOADS, LOADED_BYTES, STORES, STORED_BYTES, MISSING, CORRUPT, UNKNOWN_FORM, READ_FAULTS, WRITE_FAULTS,
        DELETE_FAULTS, LATE_LOADS, REFUSED_LOADS, DROPPED_STORES, OVER_QUOTA, NOT_WORTH_STORING, EVICTIONS,
        EXPIRATIONS, PROMOTIONS, BREAKER_OPENINGS, INQUIRIES, LATE_INQUIRIES, REFUSED_INQUIRIES, FOUND_BLOCKS,
        AMENDED_HEADERS, AMEND_FAULTS,
    )  # fmt: skip


class Counters:
    """Thread-safe counts of one tier."""

    def __init__(self) -> None:
        self._counts = dict.fromkeys(Count.ALL, 0)
        self._lock = Lock()

    def add(self, count: str, amount: int = 1) -> None:
        """Count ``amount`` more."""
        with self._lock:
            self._counts[count] += amount

    def add_transfer(self, count: str, count_bytes: str, nbytes: int) -> None:
        """Count one transfer and its bytes."""
        with self._lock:
            self._counts[count] += 1
            self._counts[count_bytes] += nbytes

    def snapshot(self) -> dict[str, int]:
        """Return all counts by name, zeros included."""
        with self._lock:
            return dict(self._counts)


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
    """The worst state of any tier, each tier's own, and what is wrong beyond them (one line, or empty)."""

    state: State
    tiers: dict[str, TierHealth]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What a tenant or a namespace has of a tier, where it has a quota.

    ``scope`` says which; ``name`` is the salt's digest (empty: requests without one), or the namespace's.
    """

    scope: str
    name: str
    quota_bytes: int
    used_bytes: int
    num_blocks: int


@dataclass(frozen=True, slots=True)
class TenantPins:
    """What a tenant has pinned in all tiers together, and what it may."""

    tenant: str
    pinned_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class TierStatistics:
    """One tier: its budget, what it holds, and its counts since the start (names of ``Count``).

    ``groups`` are those with a quota here, of others than the configuration names the largest alone. One
    that ``is_draining`` takes no new blocks.
    """

    name: str
    budget_bytes: int
    used_bytes: int
    num_blocks: int
    counts: dict[str, int] = field(default_factory=dict)
    groups: tuple[GroupUsage, ...] = ()
    pinned_bytes: int = 0
    num_pinned: int = 0
    is_draining: bool = False


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """All tiers from the fastest, lookups since the start by block (found or not), what is kept out, pins."""

    tiers: tuple[TierStatistics, ...]
    num_blocks_wanted: int
    num_blocks_found: int
    staging_bytes: int
    num_quarantined: int = 0
    pins: tuple[TenantPins, ...] = ()
