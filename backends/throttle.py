"""A backend made slower: a line with a rate and a latency, for tests and what-if."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from backends.wrapper import Wrapper, each_of
from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.frame import HEADER_BYTES, Header
from kvstore.seams import Amending, Backend, BackendStats, HeaderChange, SharedMedium, Want


class Throttled(Wrapper):
    """``backend`` behind one line of ``bytes_per_s`` that all frames share, in and out.

    ::

        frame A   |-- bytes / rate --|~ latency ~|
        frame B   (asked for meanwhile) |-- bytes / rate --|~ latency ~|

    Frames take the line in turn; latencies overlap, and frames of one exchange follow each other.
    What the backend itself takes is not added but part of that time. ``sleep`` gets seconds. A miss
    costs the latency alone. A medium that is shared can be asked through it (``ThrottledMedium``).
    """

    def __new__(  # noqa: PYI034  the class depends on what the backend can do
        cls, backend: Backend, *_args: object, **_options: object
    ) -> Throttled:
        return super().__new__(ThrottledMedium if isinstance(backend, SharedMedium) else cls)

    def __init__(
        self,
        backend: Backend,
        bytes_per_s: float,
        latency_s: float = 0.0,
        clock: Clock | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        if bytes_per_s <= 0 or latency_s < 0:
            raise ConfigError("throttle", f"{bytes_per_s} bytes/s with {latency_s} s is no line")
        super().__init__(backend)
        self._bytes_per_s = bytes_per_s
        self._latency_s = latency_s
        self._now_s = (clock or Clock()).monotonic_s
        self._sleep = sleep
        self._free_at_s = 0.0
        self._lock = Lock()

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        asked_s = self._now_s()
        nbytes = self._backend.get_into(key, header, payload)
        self._wait_until(self._arrival_s(asked_s, nbytes))
        return nbytes

    def get_each(self, wants: Sequence[Want]) -> Iterator[int | None]:
        """Yield as ``Streaming`` says, whether ``backend`` streams or not."""
        unused_s = sum(self._line_s(len(want.payload)) for want in wants)
        at_s = self._taken_until_s(self._now_s(), unused_s) - unused_s
        try:
            for nbytes in each_of(self._backend, wants):
                line_s = 0.0 if nbytes is None else self._line_s(nbytes)
                at_s, unused_s = at_s + line_s, unused_s - line_s
                self._wait_until(at_s + self._latency_s)
                yield nbytes
        finally:
            with self._lock:
                self._free_at_s -= unused_s

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        self._wait_until(self._arrival_s(self._now_s(), len(payload)))
        self._backend.put(key, header, payload)

    def _amend(self, backend: Amending, key: bytes, change: HeaderChange) -> bool:
        self._wait_until(self._arrival_s(self._now_s(), 0))
        return super()._amend(backend, key, change)

    def stats(self) -> BackendStats:
        inner = super().stats()
        line = {
            "throttle_bytes_per_s": f"{self._bytes_per_s:.0f}",
            "throttle_latency_s": f"{self._latency_s}",
        }
        return BackendStats(inner.occupied_bytes, inner.facts | line)

    def _arrival_s(self, asked_s: float, payload_bytes: int | None) -> float:
        """Return when one frame is there, whose turn on the line this takes; ``None`` (a miss) needs none."""
        if payload_bytes is None:
            return asked_s + self._latency_s
        return self._taken_until_s(asked_s, self._line_s(payload_bytes)) + self._latency_s

    def _line_s(self, payload_bytes: int) -> float:
        return (HEADER_BYTES + payload_bytes) / self._bytes_per_s

    def _taken_until_s(self, asked_s: float, line_s: float) -> float:
        with self._lock:
            self._free_at_s = max(self._free_at_s, asked_s) + line_s
            return self._free_at_s

    def _wait_until(self, when_s: float) -> None:
        remaining_s = when_s - self._now_s()
        if remaining_s > 0:
            self._sleep(remaining_s)


class ThrottledMedium(Throttled):
    """The same for a shared medium: an answer takes the line for the headers that it brings."""

    def resident(self, keys: Sequence[bytes]) -> Sequence[Header | None]:
        medium = self._backend
        if not isinstance(medium, SharedMedium):
            raise TypeError("a backend that is not shared is a Throttled's")
        asked_s = self._now_s()
        answer = medium.resident(keys)
        num_bytes = HEADER_BYTES * sum(header is not None for header in answer)
        self._wait_until(self._taken_until_s(asked_s, num_bytes / self._bytes_per_s) + self._latency_s)
        return answer
