"""What the audit in idle time has found: which copies were right, and which were not."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock

from kvstore.stored_copies import StoredCopies

_MOST_KNOWN = 1 << 15
_FRESH_S = 3600
_MASK_BITS = 16
_MOST_WRONG = 32
_AT_A_TIME = 1024


@dataclass(frozen=True, slots=True)
class WrongCopy:
    """A stored block that differs from what its tokens give; ``block`` is its place in the prompt.

    ``namespace`` is its namespace's digest, ``label`` a name for people, ``tenant`` a digest: whose it is.
    """

    key: bytes
    block: int
    tier: str
    namespace: bytes
    label: str
    tenant: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What was recomputed and compared in idle time since the start.

    A block that two tiers hold is two copies, each compared on its own. ``coverage`` is the share of the
    copies stored below the device that were compared in this process, by now. ``spent_s`` of ``idle_s`` went
    into it. ``num_failed`` attempts broke off with an error. ``last_wrong`` are the latest first.
    """

    share: float = 0.0
    num_prompts: int = 0
    memory_bytes: int = 0
    num_compared: int = 0
    compared_bytes: int = 0
    num_wrong: int = 0
    num_failed: int = 0
    last_at_ms: int | None = None
    coverage: float = 0.0
    spent_s: float = 0.0
    idle_s: float = 0.0
    last_wrong: tuple[WrongCopy, ...] = ()


class AuditBook:
    """Remembers which copies were compared within the hour: 32,768 blocks, some 4 MB. Thread-safe."""

    def __init__(self, copies: StoredCopies) -> None:
        self._copies = copies
        # When the first of a block's copies was compared (seconds), and in which tiers since, as a mask.
        self._compared: dict[bytes, int] = {}
        self._bits: dict[str, int] = {}
        self._wrong: deque[WrongCopy] = deque(maxlen=_MOST_WRONG)
        self._tally = Audit()
        self._lock = Lock()

    def is_fresh(self, key: bytes, tier: str, now_s: float) -> bool:
        """Say whether a copy was found to be right within the last hour, by the monotonic clock."""
        with self._lock:
            return bool(self._fresh(key, now_s) & self._bit(tier))

    def note(self, key: bytes, tier: str, nbytes: int, now_s: float, now_ms: int) -> None:
        """Note a copy that is right."""
        with self._lock:
            self._count(nbytes, now_ms)
            known = self._fresh(key, now_s) or int(now_s) << _MASK_BITS
            self._compared.pop(key, None)
            self._compared[key] = known | self._bit(tier)
            if len(self._compared) > _MOST_KNOWN:
                del self._compared[next(iter(self._compared))]

    def note_wrong(self, wrong: WrongCopy, nbytes: int) -> None:
        """Note one that is not."""
        with self._lock:
            self._count(nbytes, wrong.at_ms)
            self._tally = replace(self._tally, num_wrong=self._tally.num_wrong + 1)
            self._wrong.appendleft(wrong)
            self._compared.pop(wrong.key, None)

    def note_failure(self) -> None:
        """Note an attempt that broke off with an error."""
        with self._lock:
            self._tally = replace(self._tally, num_failed=self._tally.num_failed + 1)

    @property
    def last_wrong(self) -> tuple[WrongCopy, ...]:
        """The latest copies that were wrong, the last first."""
        with self._lock:
            return tuple(self._wrong)

    def facts(self) -> Audit:
        """Return all of it; looks once at every block that is remembered."""
        with self._lock:
            tally, wrong = self._tally, tuple(self._wrong)
            compared = dict(self._compared)
        return replace(tally, last_wrong=wrong, coverage=self._coverage(compared))

    def _coverage(self, compared: dict[bytes, int]) -> float:
        num_stored, num_known, keys = self._copies.num_stored, 0, iter(compared)
        while batch := list(islice(keys, _AT_A_TIME)):
            for key, tiers in zip(batch, self._copies.where(batch), strict=True):
                num_known += sum(compared[key] & self._bits.get(tier, 0) > 0 for tier in tiers)
        return min(1.0, num_known / num_stored) if num_stored else 0.0

    def _fresh(self, key: bytes, now_s: float) -> int:
        known = self._compared.get(key, 0)
        return known if now_s - (known >> _MASK_BITS) < _FRESH_S else 0

    def _bit(self, tier: str) -> int:
        return self._bits.setdefault(tier, 1 << len(self._bits) % _MASK_BITS)

    def _count(self, nbytes: int, now_ms: int) -> None:
        tally = self._tally
        self._tally = replace(
            tally,
            num_compared=tally.num_compared + 1,
            compared_bytes=tally.compared_bytes + nbytes,
            last_at_ms=now_ms,
        )
