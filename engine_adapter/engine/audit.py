"""What the audit in idle time has found: which copies were right, and which were not."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, replace
from itertools import islice
from threading import Lock

from kvstore.stored_copies import StoredCopies

_MOST_KNOWN = 1 << 16
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
    """Remembers which copies were compared, and when. Thread-safe."""

    def __init__(self, copies: StoredCopies) -> None:
        self._copies = copies
        self._compared: OrderedDict[bytes, dict[str, float]] = OrderedDict()
        self._wrong: deque[WrongCopy] = deque(maxlen=_MOST_WRONG)
        self._tally = Audit()
        self._lock = Lock()

    def compared_at_s(self, key: bytes, tier: str) -> float | None:
        """Return when a copy was last found to be right (monotonic); ``None``: not that it is remembered."""
        with self._lock:
            return self._compared.get(key, {}).get(tier)

    def note(self, key: bytes, tier: str, nbytes: int, now_s: float, now_ms: int) -> None:
        """Note a copy that is right."""
        with self._lock:
            self._count(nbytes, now_ms)
            self._compared.setdefault(key, {})[tier] = now_s
            self._compared.move_to_end(key)
            if len(self._compared) > _MOST_KNOWN:
                self._compared.popitem(last=False)

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
            compared = {key: tuple(tiers) for key, tiers in self._compared.items()}
        return replace(tally, last_wrong=wrong, coverage=self._coverage(compared))

    def _coverage(self, compared: dict[bytes, tuple[str, ...]]) -> float:
        num_stored, num_known, keys = self._copies.num_stored, 0, iter(compared)
        while batch := list(islice(keys, _AT_A_TIME)):
            for key, tiers in zip(batch, self._copies.where(batch), strict=True):
                num_known += sum(tier in compared[key] for tier in tiers)
        return min(1.0, num_known / num_stored) if num_stored else 0.0

    def _count(self, nbytes: int, now_ms: int) -> None:
        tally = self._tally
        self._tally = replace(
            tally,
            num_compared=tally.num_compared + 1,
            compared_bytes=tally.compared_bytes + nbytes,
            last_at_ms=now_ms,
        )
