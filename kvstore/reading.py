"""The one straight path from a medium: read, verify, decode, in the caller's buffer."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from enum import Enum
from itertools import repeat
from typing import NamedTuple

from kvstore.errors import BackendError, FrameError, UnknownFormError
from kvstore.forms import Forms
from kvstore.frame import HEADER_BYTES
from kvstore.guard import Guard
from kvstore.record import Record
from kvstore.seams import Backend, Streaming, Want
from kvstore.statistics import Count, Counters


class Read(Enum):
    """How an attempt to read a block ended."""

    DONE = "done"
    MISSING = "missing"
    CORRUPT = "corrupt"
    UNKNOWN_FORM = "unknown form"
    FAULT = "fault"
    REFUSED = "refused"


class Landing(NamedTuple):
    """A block to read, and where to: ``out`` has its raw length and is undefined unless that is ``DONE``.

    One that is read to be looked at, not to be used, is not counted as a load.
    """

    record: Record
    out: memoryview
    is_used: bool = True


class Arrival(NamedTuple):
    """How that ended; the sizes and times are those of a block that is ``DONE``."""

    outcome: Read
    stored_bytes: int = 0
    decode_s: float = 0.0


class Reader:
    """Reads from one medium. Thread-safe; whatever the medium raises ends here.

    A record's ``checksum`` becomes that of the bytes that were read, ``None`` where it was not taken.
    """

    def __init__(self, backend: Backend, forms: Forms, guard: Guard, counters: Counters) -> None:
        self._backend = backend
        self._stream = backend if isinstance(backend, Streaming) else None
        self._forms = forms
        self._guard = guard
        self._counters = counters

    @property
    def is_streaming(self) -> bool:
        """Whether several blocks come in one exchange."""
        return self._stream is not None

    def read(self, landing: Landing) -> Arrival:
        """Read one block; blocks on the medium."""
        if not self._guard.may():
            return Arrival(Read.REFUSED)
        want = _want(landing)
        answer = self._guard.attempt(lambda: (self._backend.get_into(*want),), Count.READ_FAULTS)
        return Arrival(Read.FAULT) if answer is None else self._arrived(landing, want, *answer)

    def read_each(self, landings: Sequence[Landing]) -> Generator[Arrival, None, None]:
        """Yield how each of ``landings`` ended, in order and as soon as it has; blocks on the medium.

        Closing it ends the exchange; buffers that were not yielded are then the caller's again.
        """
        if not landings:
            return
        if self._stream is None:
            yield from map(self.read, landings)
        elif self._guard.may():
            yield from self._exchange(self._stream, landings)
        else:
            yield from repeat(Arrival(Read.REFUSED), len(landings))

    def _exchange(self, stream: Streaming, landings: Sequence[Landing]) -> Generator[Arrival, None, None]:
        wants = [_want(landing) for landing in landings]
        num_left = len(wants)
        lengths = None
        fault: Exception = BackendError("stream", "get_each", "it ended early")
        try:
            lengths = stream.get_each(wants)
            # The lengths first: they are asked once more than there are, and so the exchange ends well.
            for length, landing, want in zip(lengths, landings, wants, strict=False):
                yield self._arrived(landing, want, length)
                num_left -= 1
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            fault = error
        finally:
            if isinstance(lengths, Generator):
                lengths.close()
        if num_left:
            self._guard.failed(Count.READ_FAULTS, fault)
        else:
            self._guard.succeeded()
        yield from repeat(Arrival(Read.FAULT), num_left)

    def _arrived(self, landing: Landing, want: Want, stored_bytes: int | None) -> Arrival:
        if stored_bytes is None:
            self._counters.add(Count.MISSING)
            return Arrival(Read.MISSING)
        record = landing.record
        try:
            opened = self._forms.open(bytes(want.header), record, landing.out, stored_bytes)
        except UnknownFormError:
            self._counters.add(Count.UNKNOWN_FORM)
            return Arrival(Read.UNKNOWN_FORM)
        except FrameError:
            self._counters.add(Count.CORRUPT)
            return Arrival(Read.CORRUPT)
        record.checksum = opened.checksum
        if landing.is_used:
            self._counters.add_transfer(Count.LOADS, Count.LOADED_BYTES, stored_bytes)
        return Arrival(Read.DONE, stored_bytes, opened.decode_s)


def _want(landing: Landing) -> Want:
    return Want(landing.record.key, memoryview(bytearray(HEADER_BYTES)), landing.out)
