"""What an operation does, or would do: block by block, tier by tier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What happens to a block in a tier."""

    LEAVES = "leaves"
    """It goes from there, as asked."""
    ARRIVES = "arrives"
    """It comes there, as asked."""
    EVICTED = "evicted"
    """It goes from there to make room."""
    DEMOTED = "demoted"
    """It comes there because a faster tier evicted it."""


class Why(StrEnum):
    """Why a block stays as it is."""

    NOT_THERE = "not there"
    ALREADY_THERE = "already there"
    IN_USE = "in use"
    """Leased, being loaded or being written."""
    PINNED = "pinned"
    """It, or a block that follows it and could not go after it."""
    NO_ROOM = "would not fit"
    """All that may make way does not suffice."""
    QUOTA = "quota"
    """Its tenant's or namespace's quota in that tier has no room for it."""
    PIN_BUDGET = "pin would not fit"
    """It is pinned, and may not be in the other tier: half of it is, or its tenant's budget is used up."""
    NOT_ADMITTED = "not admitted"
    """The tier does not take such a block, or drains."""
    ENDED = "would have ended there"
    """The tier's TTL is shorter, and was over."""
    UNREADABLE = "in a form that cannot be read here"
    QUARANTINED = "in quarantine"
    OUT = "the tier is out"
    """It is left out for its faults at the moment."""
    STRANGER = "its namespace is not known"
    """No manifest tells what it is."""
    FAILED = "failed"
    """It was tried: the block could not be read, written or removed."""


class Effect(NamedTuple):
    """One block comes to a tier or goes from it; ``nbytes`` are those it occupies there.

    ``tenant`` is whose it is: who is made room for may be another than who makes way.
    """

    kind: Kind
    key: bytes
    tier: str
    nbytes: int
    tenant: str | None


class Stay(NamedTuple):
    """A block that was meant stays as it is in ``tier``, or does not come there; ``nbytes``: raw."""

    key: bytes
    tier: str
    why: Why
    nbytes: int


class Amount(NamedTuple):
    """Blocks and their bytes."""

    num_blocks: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened, or what a dry run says would; in a store at rest they are equal.

    ``effects`` stand in the order in which they happen. ``is_cancelled``: it was called off before its end.
    """

    num_selected: int
    effects: tuple[Effect, ...] = ()
    stays: tuple[Stay, ...] = ()
    is_cancelled: bool = False

    def of(self, kind: Kind) -> Mapping[str, Amount]:
        """Return how much of a kind there is, by tier."""
        return _sums((effect.tier, effect.nbytes) for effect in self.effects if effect.kind is kind)

    def reasons(self) -> Mapping[str, Amount]:
        """Return how much stays, by why."""
        return _sums((stay.why.value, stay.nbytes) for stay in self.stays)


@dataclass(frozen=True, slots=True)
class BadCopy:
    """A block that failed verification in a tier, and why: it is gone from there."""

    key: bytes
    tier: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What verifying copies of blocks found, a copy in each tier that stores bytes.

    ``num_unsure`` lie in our own memory without a checksum to compare with (``audit_share``);
    ``num_unread`` could not be read at the moment, or not in this form, and stay.
    """

    num_selected: int
    num_verified: int
    nbytes: int
    bad: tuple[BadCopy, ...]
    num_unsure: int
    num_unread: int
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Retimed:
    """How many blocks end otherwise now, and which of those asked for are not there."""

    num_blocks: int
    absent: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written to a file; ``digest`` (hex) is that of what it says of its blocks.

    ``stays`` are those that are not in it, and why.
    """

    num_blocks: int
    nbytes: int
    digest: str
    stays: tuple[Stay, ...] = ()
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Imported:
    """What came in from a file: blocks stored, there already, and those that were not taken, with why."""

    num_selected: int
    num_stored: int
    num_there: int
    stays: tuple[Stay, ...]
    namespaces: tuple[bytes, ...]
    is_cancelled: bool = False


def _sums(parts: Iterable[tuple[str, int]]) -> dict[str, Amount]:
    sums: dict[str, Amount] = {}
    for name, nbytes in parts:
        before = sums.get(name, Amount(0, 0))
        sums[name] = Amount(before.num_blocks + 1, before.nbytes + nbytes)
    return sums
