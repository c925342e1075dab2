"""One tier: its medium, its breakers and counts, and the ways in and out of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice

from kvstore.admitting import Admitting
from kvstore.breaker import Breaker
from kvstore.clock import Clock
from kvstore.errors import ConfigError, one_line
from kvstore.forms import Forms, Stored
from kvstore.frame import Header
from kvstore.guard import Guard
from kvstore.reading import Arrival, Landing, Reader
from kvstore.record import Record
from kvstore.seams import (
    Admission,
    Amending,
    Backend,
    Codec,
    Discovering,
    EvictionPolicy,
    HeaderChange,
    Lending,
    Verdict,
)  # fmt: skip
from kvstore.statistics import Count, Counters, State, TierHealth
from kvstore.transfers import TransferPool

DEVICE = "device"
"""The tier that the engine's own block pool makes up: always the fastest, reported, not stored to."""

DEVICE_BIT = 0
"""Its number in the index."""


class WriteMode(Enum):
    """When a block reaches this tier; all but ``THROUGH`` are for tiers below one in our own memory."""

    THROUGH = "through"
    """As soon as it is stored."""
    BACK = "back"
    """When memory evicts it."""
    SECOND_USE = "second-use"
    """When it is hit for the first time."""


@dataclass(frozen=True, slots=True)
class TierConfig:
    """A tier's name, byte budget and queues. Raises ``ConfigError`` for what cannot be.

    ``max_batch`` is how many blocks a backend that streams is asked for in one exchange.
    """

    name: str
    budget_bytes: int
    write_mode: WriteMode = WriteMode.THROUGH
    num_readers: int = 4
    max_queued_reads: int = 4096
    max_queued_writes: int = 256
    max_batch: int = 64
    fault_threshold: int = 3
    cooldown_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.name or self.name == DEVICE:
            raise ConfigError("name", f"a tier's name is not empty and not {DEVICE!r}")
        if self.budget_bytes <= 0:
            raise ConfigError(f"{self.name}_bytes", f"must be positive, not {self.budget_bytes}")
        for name in ("num_readers", "max_queued_reads", "max_queued_writes", "max_batch", "fault_threshold"):
            if getattr(self, name) < 1:
                raise ConfigError(name, "must be at least 1")


@dataclass(frozen=True, slots=True)
class TierSpec:
    """What a tier is made of; the store owns ``backend`` and ``policy`` from then on.

    ``codec`` is the lossless form that it writes blocks in; it reads all forms that the store knows.
    ``make_policy`` makes the orders of groups that have a quota here; ``None``: none may have.
    """

    config: TierConfig
    backend: Backend
    policy: EvictionPolicy
    admission: Admission
    codec: Codec | None = None
    make_policy: Callable[[], EvictionPolicy] | None = None


class Tier:
    """A tier at work. ``bit`` is its number in the index. Thread-safe.

    Every call that moves or removes bytes on a medium is made here, and whatever it raises ends
    here: counted, and told to the breaker.
    """

    def __init__(self, spec: TierSpec, bit: int, clock: Clock, codecs: Iterable[Codec] = ()) -> None:
        self.config = spec.config
        self.bit = bit
        self.is_draining = False
        self.counters = Counters()
        self.pool = TransferPool(
            spec.config.name,
            num_readers=spec.config.num_readers,
            max_queued_reads=spec.config.max_queued_reads,
            max_queued_writes=spec.config.max_queued_writes,
        )
        self._backend = spec.backend
        self._admitting = Admitting(
            spec.admission, spec.config.name, spec.config.budget_bytes, self.footprint, clock
        )
        self._reading = self._guard("reads", clock)
        self._writing = self._guard("writes", clock)
        self._forms = Forms(spec.codec, codecs, clock)
        self._reader = Reader(spec.backend, self._forms, self._reading, self.counters)
        self._last_delete_fault = ""

    @property
    def name(self) -> str:
        """The configured name."""
        return self.config.name

    def footprint(self, stored_bytes: int) -> int:
        """Return the bytes that a block of ``stored_bytes`` occupies on the medium."""
        return self._backend.footprint(stored_bytes)

    def admits(self, num_tokens: int, facts: Record) -> bool:
        """Say whether this tier takes a block, of which ``num_tokens`` are filled; a refusal is counted."""
        if self.is_draining:
            self.counters.add(Count.DROPPED_STORES)
            return False
        verdict = self._admitting.verdict(num_tokens, facts)
        if verdict is Verdict.ADMITTED:
            return True
        is_for_value = verdict is Verdict.NEVER_FASTER
        self.counters.add(Count.NOT_WORTH_STORING if is_for_value else Count.DROPPED_STORES)
        return False

    def would_admit(self, facts: Record) -> bool:
        """Say whether this tier would take a whole block; nothing is counted."""
        if self.is_draining:
            return False
        return self._admitting.verdict(facts.block_tokens, facts) is Verdict.ADMITTED

    def is_readable(self) -> bool:
        """Say whether lookups should count on this tier."""
        return not self._reading.is_open()

    def is_writable(self) -> bool:
        """Say whether writes are not paused for faults."""
        return not self._writing.is_open()

    def may_write(self) -> bool:
        """Say whether a write may be tried now; takes the trial of a half-open breaker."""
        return self._writing.may()

    @property
    def is_streaming(self) -> bool:
        """Whether ``read_each`` reads several blocks in one exchange."""
        return self._reader.is_streaming

    def knows(self, header: Header) -> bool:
        """Say whether a block with this header can be read here."""
        return self._forms.knows(header)

    def read(self, landing: Landing) -> Arrival:
        """Read, verify and decode a block; blocks on the medium."""
        return self._reader.read(landing)

    def read_each(self, landings: Sequence[Landing]) -> Generator[Arrival, None, None]:
        """Do so for several, in order; see ``Reader.read_each``."""
        return self._reader.read_each(landings)

    def encode(self, raw: memoryview) -> Stored | None:
        """Return the form in which a block is written; ``None`` after a fault of the codec, counted."""
        try:
            return self._forms.encode(raw)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self._writing.failed(Count.WRITE_FAULTS, error)
            return None

    def write(self, header: Header, payload: memoryview) -> bool:
        """Write one block; blocks on the medium. ``False``: it is not there."""
        packed = memoryview(header.pack())

        def put() -> bool:
            self._backend.put(header.key, packed, payload)
            return True

        if not self._writing.attempt(put, Count.WRITE_FAULTS):
            return False
        self.counters.add_transfer(Count.STORES, Count.STORED_BYTES, len(payload))
        return True

    def delete(self, key: bytes) -> bool:
        """Remove a block from the medium; ``False``: it is still there.

        A fault pauses writes like a failed write would; a success does not resume them, for a full
        medium still deletes.
        """
        try:
            self._backend.delete(key)
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self._writing.failed(Count.DELETE_FAULTS, error)
            self._last_delete_fault = one_line(error)
            return False
        return True

    @property
    def can_amend(self) -> bool:
        """Whether headers can be rewritten there."""
        return isinstance(self._backend, Amending)

    def amend(self, key: bytes, change: HeaderChange) -> bool:
        """Rewrite a block's header; blocks on the medium. ``False``: not now, or after a fault.

        A fault is counted and told to no breaker: a user of a server may be allowed to do all but this.
        """
        if not isinstance(self._backend, Amending) or self._writing.is_open():
            return False
        try:
            if self._backend.amend(key, change):
                self.counters.add(Count.AMENDED_HEADERS)
        except Exception:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self.counters.add(Count.AMEND_FAULTS)
            return False
        return True

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        """Keep a namespace's manifest; a fault costs the manifest only."""
        self._writing.attempt(lambda: self._backend.put_manifest(namespace, manifest), Count.WRITE_FAULTS)

    def manifests(self, limit: int) -> list[str]:
        """Return up to ``limit`` of the manifests that are kept there; blocks on the medium."""
        kept = self._reading.attempt(
            lambda: list(islice(self._backend.manifests(), limit)), Count.READ_FAULTS
        )
        return kept or []

    def recover(self, enter: Callable[[Header], None]) -> None:
        """Call ``enter`` for every block that the backend still knows from before."""

        def enter_all() -> None:
            for header in self._backend.recover():
                enter(header)

        self._reading.attempt(enter_all, Count.READ_FAULTS)

    def discover(self, enter: Callable[[Header], None], stop: Callable[[], bool]) -> None:
        """Call ``enter`` for every block that a scan of the medium finds besides; blocks until it ends."""
        backend = self._backend
        if isinstance(backend, Discovering):
            self._reading.attempt(lambda: backend.discover(enter, stop), Count.READ_FAULTS)

    def close_backend(self) -> None:
        """Close the backend; may block. Writes that are paused stay so, whether it can be closed or not."""
        try:
            self._backend.close()
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self._writing.failed(Count.WRITE_FAULTS, error)

    def note_late_load(self) -> None:
        """Tell the breaker that a load was given up at its deadline, which is a fault like any other."""
        self._reading.failed(Count.LATE_LOADS, TimeoutError("loads do not answer in time"))

    def health(self, num_stuck: int) -> TierHealth:
        """Return the tier's state; ``num_stuck`` blocks could not be removed from the medium."""
        if not self.pool.is_alive():
            return TierHealth(State.UNHEALTHY, "a transfer thread has died: restart the server")
        reasons = [
            f"{what} paused: {reason}"
            for what, guard in (("reads", self._reading), ("writes", self._writing))
            if (reason := guard.paused_for())
        ]
        if self.pool.num_lost:
            reasons.append(f"transfers broken off by a fault of the code: {self.pool.num_lost}")
        if num_stuck:
            reasons.append(f"{num_stuck} blocks cannot be removed: {self._last_delete_fault}")
        if self.is_draining:
            reasons.append("draining: it takes no new blocks")
        told = "; ".join(reasons)
        return TierHealth(State.DEGRADED if told else State.OK, told)

    def _guard(self, what: str, clock: Clock) -> Guard:
        breaker = Breaker(self.config.fault_threshold, self.config.cooldown_s)
        return Guard(f"{what} of tier {self.name}", breaker, self.counters, clock)


class MemoryTier(Tier):
    """A tier in our own memory: its blocks are filled slots that it takes over and lends."""

    def __init__(self, spec: TierSpec, lending: Lending, bit: int, clock: Clock) -> None:
        super().__init__(spec, bit, clock)
        self.lending = lending
