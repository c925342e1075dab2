"""Copies between a device and our own memory: made at once, or on streams beside the one that computes.

::

    compute   |== step ==|== step ==|·········|== step that reads it ==|
                         │          │         │
    out                  └─|= store =|        │     begins after the step that wrote the block
    into                            └─|= load =|    the step that reads the block begins after it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from kvstore.clock import Clock


class Copy(Protocol):
    """Numbers on their way; the memory at both ends must be left alone until it is complete."""

    @property
    def took_s(self) -> float:
        """How long the copy itself took; asked for when it is complete."""
        ...

    def done(self) -> bool:
        """Say whether it is complete; never blocks."""
        ...

    def wait(self) -> None:
        """Block until it is complete."""
        ...

    def precede_compute(self) -> None:
        """Let all that is computed from now on begin after it; never blocks."""
        ...


class Copies(Protocol):
    """Begins copies of tensors, each source into its target.

    Those of one direction are complete in the order in which they began. They begin after all that
    is to be computed so far. What is raised is raised with nothing under way.
    """

    def out(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copy:
        """Begin to copy from the device."""
        ...

    def into(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copy:
        """Begin to copy into the device."""
        ...


@dataclass(frozen=True, slots=True)
class _Made:
    took_s: float

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Return at once."""

    def precede_compute(self) -> None:
        """Do nothing: it has."""


class InlineCopies:
    """Copies on the caller's thread: complete when they are returned."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def out(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copy:
        began_s = self._clock.monotonic_s()
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source)
        return _Made(self._clock.monotonic_s() - began_s)

    into = out


class StreamCopies:
    """Copies on two streams of a CUDA device, one for each direction.

    They are beside computing where our own memory is page-locked; where it is not, the driver makes the
    caller wait. Used by the thread that computes, whose current stream is the one that copies are ordered by.
    """

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """``cuda`` has the streams and events of ``torch.cuda``."""
        self._device = device
        self._cuda = cuda
        self._out = cuda.Stream(device)
        self._into = cuda.Stream(device)

    def out(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copy:
        return self._begin(self._out, targets, sources)

    def into(self, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copy:
        return self._begin(self._into, targets, sources)

    def _begin(self, stream: Any, targets: Sequence[torch.Tensor], sources: Sequence[torch.Tensor]) -> Copy:
        began, ended = self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)
        stream.wait_stream(self._cuda.current_stream(self._device))
        began.record(stream)
        try:
            with self._cuda.stream(stream):
                for target, source in zip(targets, sources, strict=True):
                    target.copy_(source, non_blocking=True)
            ended.record(stream)
        except BaseException:
            stream.synchronize()  # a part of it may be on its way
            raise
        return _UnderWay(self._cuda, self._device, began, ended, (*targets, *sources))


class _UnderWay:
    """A copy on a stream. Keeps both ends alive until it is known to be complete."""

    __slots__ = ("_began", "_cuda", "_device", "_ended", "_kept")

    def __init__(
        self, cuda: Any, device: torch.device, began: Any, ended: Any, kept: Sequence[torch.Tensor]
    ) -> None:
        self._cuda = cuda
        self._device = device
        self._began = began
        self._ended = ended
        self._kept = kept

    @property
    def took_s(self) -> float:
        return float(self._began.elapsed_time(self._ended)) / 1000

    def done(self) -> bool:
        if self._kept and self._ended.query():
            self._kept = ()
        return not self._kept

    def wait(self) -> None:
        self._ended.synchronize()
        self._kept = ()

    def precede_compute(self) -> None:
        self._cuda.current_stream(self._device).wait_event(self._ended)


def copies_for(device: torch.device, clock: Clock) -> Copies:
    """Return what copies to and from ``device``: on streams of a GPU, else inline."""
    return StreamCopies(device) if device.type == "cuda" else InlineCopies(clock)
