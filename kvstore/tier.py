"""One tier: its medium, its breakers and counts, and the one straight path by which bytes are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import TypeVar

from kvstore.admitting import Admitting
from kvstore.breaker import Breaker
from kvstore.clock import Clock
from kvstore.errors import ConfigError, FrameError, one_line
from kvstore.frame import HEADER_BYTES, RAW_CODEC, Header, checksum
from kvstore.record import Record
from kvstore.seams import Admission, Backend, Discovering, EvictionPolicy, Lending, Verdict
from kvstore.statistics import Count, Counters, State, TierHealth
from kvstore.transfers import TransferPool

T = TypeVar("T")

DEVICE = "device"
"""The tier that the engine's own block pool makes up: always the fastest, reported, not stored to."""


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
    """A tier's name, byte budget and queues. Raises ``ConfigError`` for what cannot be."""

    name: str
    budget_bytes: int
    write_mode: WriteMode = WriteMode.THROUGH
    num_readers: int = 4
    max_queued_reads: int = 4096
    max_queued_writes: int = 256
    fault_threshold: int = 3
    cooldown_s: float = 5.0

    def __post_init__(self) -> None:
        if not self.name or self.name == DEVICE:
            raise ConfigError("name", f"a tier's name is not empty and not {DEVICE!r}")
        if self.budget_bytes <= 0:
            raise ConfigError(f"{self.name}_bytes", f"must be positive, not {self.budget_bytes}")
        for name in ("num_readers", "max_queued_reads", "max_queued_writes", "fault_threshold"):
            if getattr(self, name) < 1:
                raise ConfigError(name, "must be at least 1")


@dataclass(frozen=True, slots=True)
class TierSpec:
    """What a tier is made of; the store owns ``backend`` and ``policy`` from then on."""

    config: TierConfig
    backend: Backend
    policy: EvictionPolicy
    admission: Admission


class Read(Enum):
    """How an attempt to read a block ended."""

    DONE = "done"
    MISSING = "missing"
    CORRUPT = "corrupt"
    FAULT = "fault"
    REFUSED = "refused"


class Tier:
    """A tier at work. ``bit`` is its number in the index. Thread-safe.

    Every call that moves or removes bytes on a medium is made here, and whatever it raises ends
    here: counted, and told to the breaker.
    """

    def __init__(self, spec: TierSpec, bit: int, clock: Clock) -> None:
        self.config = spec.config
        self.bit = bit
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
        self._clock = clock
        self._reading = Breaker(spec.config.fault_threshold, spec.config.cooldown_s)
        self._writing = Breaker(spec.config.fault_threshold, spec.config.cooldown_s)
        self._last_delete_fault = ""
        self._lock = Lock()

    @property
    def name(self) -> str:
        """The configured name."""
        return self.config.name

    def footprint(self, stored_bytes: int) -> int:
        """Return the bytes that a block of ``stored_bytes`` occupies on the medium."""
        return self._backend.footprint(stored_bytes)

    def admits(self, num_tokens: int, facts: Record) -> bool:
        """Say whether this tier takes a block, of which ``num_tokens`` are filled; a refusal is counted."""
        verdict = self._admitting.verdict(num_tokens, facts)
        if verdict is Verdict.ADMITTED:
            return True
        is_for_value = verdict is Verdict.NEVER_FASTER
        self.counters.add(Count.NOT_WORTH_STORING if is_for_value else Count.DROPPED_STORES)
        return False

    def is_readable(self) -> bool:
        """Say whether lookups should count on this tier."""
        return not self._reading.is_open(self._clock.monotonic_s())

    def may_write(self) -> bool:
        """Say whether a write may be tried now; takes the trial of a half-open breaker."""
        return self._may(self._writing)

    def read(self, record: Record, out: memoryview) -> Read:
        """Read, verify and decode a block into ``out`` (its raw length); blocks on the medium.

        ``out`` is undefined unless the answer is ``DONE``.
        """
        if not self._may(self._reading):
            return Read.REFUSED
        header = bytearray(HEADER_BYTES)
        read = self._attempt(
            lambda: (self._backend.get_into(record.key, memoryview(header), out),),
            Count.READ_FAULTS,
            self._reading,
        )
        if read is None:
            return Read.FAULT
        (stored_bytes,) = read
        if stored_bytes is None:
            self.counters.add(Count.MISSING)
            return Read.MISSING
        try:
            record.checksum = _verified_checksum(bytes(header), record, out[:stored_bytes])
        except FrameError:
            self.counters.add(Count.CORRUPT)
            return Read.CORRUPT
        self.counters.add_transfer(Count.LOADS, Count.LOADED_BYTES, len(out))
        return Read.DONE

    def write(self, header: Header, payload: memoryview) -> bool:
        """Write one block; blocks on the medium. ``False``: it is not there."""
        packed = memoryview(header.pack())

        def put() -> bool:
            self._backend.put(header.key, packed, payload)
            return True

        if not self._attempt(put, Count.WRITE_FAULTS, self._writing):
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
            self._failed(self._writing, Count.DELETE_FAULTS, error)
            self._last_delete_fault = one_line(error)
            return False
        return True

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        """Keep a namespace's manifest; a fault costs the manifest only."""
        self._attempt(
            lambda: self._backend.put_manifest(namespace, manifest), Count.WRITE_FAULTS, self._writing
        )

    def recover(self, enter: Callable[[Header], None]) -> None:
        """Call ``enter`` for every block that the backend still knows from before."""

        def enter_all() -> None:
            for header in self._backend.recover():
                enter(header)

        self._attempt(enter_all, Count.READ_FAULTS, self._reading)

    def discover(self, enter: Callable[[Header], None], stop: Callable[[], bool]) -> None:
        """Call ``enter`` for every block that a scan of the medium finds besides; blocks until it ends."""
        backend = self._backend
        if isinstance(backend, Discovering):
            self._attempt(lambda: backend.discover(enter, stop), Count.READ_FAULTS, self._reading)

    def close_backend(self) -> None:
        """Close the backend; may block."""
        self._attempt(self._backend.close, Count.WRITE_FAULTS, self._writing)

    def note_late_load(self) -> None:
        """Tell the breaker that a load was given up at its deadline, which is a fault like any other."""
        self._failed(self._reading, Count.LATE_LOADS, TimeoutError("loads do not answer in time"))

    def health(self, num_stuck: int) -> TierHealth:
        """Return the tier's state; ``num_stuck`` blocks could not be removed from the medium."""
        if not self.pool.is_alive():
            return TierHealth(State.UNHEALTHY, "a transfer thread has died: restart the server")
        with self._lock:
            reasons = [
                f"{what} paused: {breaker.reason}" if breaker.opened_at_s is not None else ""
                for what, breaker in (("reads", self._reading), ("writes", self._writing))
            ]
        if self.pool.num_lost:
            reasons.append(f"transfers broken off by a fault of the code: {self.pool.num_lost}")
        if num_stuck:
            reasons.append(f"{num_stuck} blocks cannot be removed: {self._last_delete_fault}")
        told = "; ".join(filter(None, reasons))
        return TierHealth(State.DEGRADED if told else State.OK, told)

    def _attempt(self, call: Callable[[], T], count: str, breaker: Breaker) -> T | None:
        """Return what ``call`` returns, or ``None`` after counting what it raised."""
        try:
            value = call()
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self._failed(breaker, count, error)
            return None
        with self._lock:
            breaker.succeeded()
        return value

    def _may(self, breaker: Breaker) -> bool:
        with self._lock:
            return breaker.allows(self._clock.monotonic_s())

    def _failed(self, breaker: Breaker, count: str, error: Exception) -> None:
        self.counters.add(count)
        with self._lock:
            has_opened = breaker.failed(one_line(error), self._clock.monotonic_s())
        if has_opened:
            self.counters.add(Count.BREAKER_OPENINGS)


class MemoryTier(Tier):
    """A tier in our own memory: its blocks are filled slots that it takes over and lends."""

    def __init__(self, spec: TierSpec, lending: Lending, bit: int, clock: Clock) -> None:
        super().__init__(spec, bit, clock)
        self.lending = lending


def make_tier(spec: TierSpec, bit: int, clock: Clock) -> Tier:
    """Return the tier for a backend, by what it can do."""
    if isinstance(spec.backend, Lending):
        return MemoryTier(spec, spec.backend, bit, clock)
    return Tier(spec, bit, clock)


def _verified_checksum(data: bytes, record: Record, payload: memoryview) -> int:
    """Return the checksum of ``payload`` if header and bytes are the block that ``record`` names."""
    header = Header.unpack(data)
    if (header.key, header.namespace) != (record.key, record.namespace):
        raise FrameError("the bytes are another block's")
    if header.codec != RAW_CODEC or header.parts != 1:
        raise FrameError("the block is stored in a form that is not known here")
    if header.raw_bytes != record.raw_bytes or header.stored_bytes != len(payload):
        raise FrameError("the block has another size")
    if checksum(payload) != header.checksum:
        raise FrameError("the block's checksum does not match")
    return header.checksum
