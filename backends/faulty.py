"""A backend that misbehaves on cue, for tests.

A script says which call of which operation goes wrong, and how::

    Faulty(backend, [
        Fault(Operation.GET, flip_byte(17), nth=3),           # the third read only
        Fault(Operation.PUT, fail(OSError("unplugged"))),     # every write
    ])
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from threading import Lock

from backends.wrapper import Wrapper
from kvstore.seams import Amending, Backend, HeaderChange, Streaming, Want


class Operation(Enum):
    """What a fault strikes."""

    GET = "get"
    PUT = "put"
    DELETE = "delete"
    AMEND = "amend"


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a fault replaces. A delete or amendment has empty buffers; only a get's answer counts.

    A fault takes the place of an amendment by what it raises; one that proceeds lets it happen.
    """

    backend: Backend
    operation: Operation
    key: bytes
    header: memoryview
    payload: memoryview

    def proceed(self) -> int | None:
        """Do what was asked for."""
        if self.operation is Operation.GET:
            return self.backend.get_into(self.key, self.header, self.payload)
        if self.operation is Operation.PUT:
            self.backend.put(self.key, self.header, self.payload)
        elif self.operation is Operation.DELETE:
            self.backend.delete(self.key)
        return None


Action = Callable[[Call], int | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """``action`` replaces the ``nth`` call of ``operation`` (from 1), or every one."""

    operation: Operation
    action: Action
    nth: int | None = None


def fail(error: Exception) -> Action:
    """Raise ``error`` and do nothing."""

    def action(_call: Call) -> int | None:
        raise error

    return action


def stall(wait: Callable[[], object]) -> Action:
    """Call ``wait`` first (an event's, a sleep), then do what was asked for."""

    def action(call: Call) -> int | None:
        wait()
        return call.proceed()

    return action


def flip_byte(offset: int) -> Action:
    """Read, then flip the payload's byte at ``offset``."""

    def action(call: Call) -> int | None:
        nbytes = call.proceed()
        if nbytes is not None:
            call.payload[offset] ^= 0xFF
        return nbytes

    return action


def cut_short(keep_bytes: int) -> Action:
    """Read only the payload's first ``keep_bytes`` and claim to have read all of it."""

    def action(call: Call) -> int | None:
        nbytes = call.proceed()
        if nbytes is not None:
            call.payload[keep_bytes:nbytes] = bytes(nbytes - keep_bytes)
        return nbytes

    return action


def swap_with(other_key: bytes) -> Action:
    """Read the frame of ``other_key`` instead."""

    def action(call: Call) -> int | None:
        return call.backend.get_into(other_key, call.header, call.payload)

    return action


def miss(_call: Call) -> int | None:
    """Say that the key is not there."""
    return None


def half_put(error: Exception) -> Action:
    """Store the first half of the payload under a whole one's header, then raise ``error``."""

    def action(call: Call) -> int | None:
        call.backend.put(call.key, call.header, call.payload[: len(call.payload) // 2])
        raise error

    return action


def damaged_put(offset: int) -> Action:
    """Store the frame with the payload's byte at ``offset`` flipped, and report success."""

    def action(call: Call) -> int | None:
        damaged = bytearray(call.payload)
        damaged[offset] ^= 0xFF
        call.backend.put(call.key, call.header, memoryview(damaged))
        return None

    return action


class Faulty(Wrapper):
    """``backend``, except where ``script`` has a fault; the first that matches a call is played.

    ``num_calls`` tells how often each operation was called. It streams if ``backend`` does; then each
    block of an exchange counts as one call.
    """

    def __new__(  # noqa: PYI034  the class depends on what the backend can do
        cls, backend: Backend, *_args: object, **_options: object
    ) -> Faulty:
        return super().__new__(FaultyStream if isinstance(backend, Streaming) else cls)

    def __init__(self, backend: Backend, script: Sequence[Fault] = ()) -> None:
        super().__init__(backend)
        self._script = tuple(script)
        self._lock = Lock()
        self.num_calls: Counter[Operation] = Counter()

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        return self._play(Call(self._backend, Operation.GET, key, header, payload))

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        self._play(Call(self._backend, Operation.PUT, key, header, payload))

    def delete(self, key: bytes) -> None:
        self._play(Call(self._backend, Operation.DELETE, key, memoryview(b""), memoryview(b"")))

    def _amend(self, backend: Amending, key: bytes, change: HeaderChange) -> bool:
        self._play(Call(self._backend, Operation.AMEND, key, memoryview(b""), memoryview(b"")))
        return super()._amend(backend, key, change)

    def _play(self, call: Call) -> int | None:
        fault = self._next_fault(call.operation)
        return call.proceed() if fault is None else fault.action(call)

    def _next_fault(self, operation: Operation) -> Fault | None:
        """Count a call, and return the fault that replaces it."""
        with self._lock:
            self.num_calls[operation] += 1
            number = self.num_calls[operation]
        matching = (f for f in self._script if f.operation is operation and f.nth in (None, number))
        return next(matching, None)


class FaultyStream(Faulty):
    """The same for a backend that streams. A block with a fault is left out of the exchange."""

    def get_each(self, wants: Sequence[Want]) -> Iterator[int | None]:
        stream = self._backend
        if not isinstance(stream, Streaming):
            raise TypeError("a backend that does not stream is a Faulty's")
        planned = [(want, self._next_fault(Operation.GET)) for want in wants]
        rest = stream.get_each([want for want, fault in planned if fault is None])
        for want, fault in planned:
            yield next(rest) if fault is None else fault.action(Call(stream, Operation.GET, *want))
