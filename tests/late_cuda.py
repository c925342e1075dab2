"""A stand-in for ``torch.cuda`` on a CPU, whose side streams make their copies as late as they may.

What is computed is computed at once, as a test sees it. A copy on a side stream is made when a test lets it,
when somebody waits for it, or when computing is to begin after it: so whatever is used before it may be, or
given back before it was copied, shows in the numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import RLock
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from backends.copies import StreamCopies

Operation = Callable[[], object]


class LateStream:
    """Operations in order, made when they are due; a prompt stream makes each at once."""

    def __init__(self, lock: RLock, *, is_prompt: bool = False) -> None:
        self.is_prompt = is_prompt
        self._lock = lock
        self._waiting: deque[Operation] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, operation: Operation) -> None:
        with self._lock:
            self._waiting.append(operation)
            if self.is_prompt:
                self.run()

    def run(self, num: int | None = None) -> None:
        """Make all operations that wait, or the next ``num``."""
        with self._lock:
            for _ in range(len(self) if num is None else min(num, len(self))):
                self._waiting.popleft()()

    def run_until(self, event: LateEvent) -> None:
        with self._lock:
            while not event.is_reached:
                self._waiting.popleft()()

    def wait_event(self, event: LateEvent) -> None:
        self.add(event.synchronize)

    def wait_stream(self, other: LateStream) -> None:
        event = LateEvent()
        event.record(other)
        self.wait_event(event)

    def synchronize(self) -> None:
        self.run()


class LateEvent:
    def __init__(self, on_query: Operation = lambda: None) -> None:
        self.is_reached = False
        self._on_query = on_query
        self._stream: LateStream | None = None

    def record(self, stream: LateStream) -> None:
        self._stream = stream
        stream.add(self._reach)

    def query(self) -> bool:
        self._on_query()
        return self.is_reached

    def synchronize(self) -> None:
        assert self._stream is not None
        self._stream.run_until(self)

    def elapsed_time(self, later: LateEvent) -> float:
        """Return milliseconds, as ``torch.cuda.Event`` does."""
        assert self.is_reached
        assert later.is_reached
        return 2.0

    def _reach(self) -> None:
        self.is_reached = True


class _Deferring(TorchFunctionMode):
    """Leaves copies to a stream."""

    def __init__(self, stream: LateStream) -> None:
        super().__init__()
        self._stream = stream

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not torch.Tensor.copy_:
            return func(*args, **(kwargs or {}))
        target, source = args
        assert kwargs == {"non_blocking": True}
        assert target.shape == source.shape
        self._stream.add(lambda: target.copy_(source))
        return target


class LateCuda:
    """What ``StreamCopies`` needs of ``torch.cuda``.

    ``on_query`` is called whenever somebody asks whether a copy is complete, and may let streams go on.
    """

    def __init__(self) -> None:
        self.lock = RLock()
        self.compute = LateStream(self.lock, is_prompt=True)
        self.on_query: Operation = lambda: None
        self.made: list[LateStream] = []
        self.copies = StreamCopies(torch.device("cpu"), self)

    @property
    def out(self) -> LateStream:
        return self.made[0]

    @property
    def into(self) -> LateStream:
        return self.made[1]

    def Stream(self, _device: torch.device) -> LateStream:  # noqa: N802 - as torch calls it
        self.made.append(LateStream(self.lock))
        return self.made[-1]

    def Event(self, *, enable_timing: bool) -> LateEvent:  # noqa: N802 - likewise
        assert enable_timing
        return LateEvent(self._hear_query)

    def current_stream(self, _device: torch.device) -> LateStream:
        return self.compute

    @contextmanager
    def stream(self, stream: LateStream) -> Iterator[None]:
        with _Deferring(stream):
            yield

    def _hear_query(self) -> None:
        self.on_query()
