"""A disk tier whose line the benchmark turns: faster, slower, or into trouble; and the policy it switches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Event

from api.bench.reload_plan import SLOWED_TIMES, Arm, Trouble
from backends.builtin import BUILT_IN
from backends.disk import DiskBackend
from backends.throttle import Throttled
from backends.wrapper import Wrapper, each_of
from kvstore.clock import Clock
from kvstore.registry import Kind, Registry
from kvstore.seams import Backend, Want
from policies.builtin import register_builtin as register_policies
from policies.planning import READY, Choice, Plan, PlanRequest, ReloadPolicy, is_loadable
from policies.split import Splits

POLICY = "bench"
"""The name under which the switch is registered."""

_SETTLED_S = 0.01


@dataclass(frozen=True, slots=True)
class Speed:
    """A line's rate and latency; trouble comes after ``trouble_after`` blocks were asked for."""

    bytes_per_s: float
    latency_s: float
    trouble: Trouble = Trouble.NONE
    trouble_after: int = 0


class Line(Wrapper):
    """``backend`` behind a line that can be changed between requests; writes are never held up.

    A line that stalls holds every read after ``trouble_after`` until ``settle``.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._changed = Condition()
        self._released = Event()
        self._num_reading = 0
        self.set(None)

    def set(self, speed: Speed | None) -> None:
        """Give the line a speed from the next read on; ``None``: the medium's own. For an idle line."""
        with self._changed:
            self._released.clear()
            self._num_asked = 0
            self._speed = speed
            self._line: Backend = self._backend
            self._late_line: Backend = self._backend
            if speed is not None:
                self._line = Throttled(self._backend, speed.bytes_per_s, speed.latency_s)
            if speed is not None and speed.trouble is Trouble.SLOWS:
                slow = speed.bytes_per_s / SLOWED_TIMES
                self._late_line = Throttled(self._backend, slow, speed.latency_s)

    def settle(self) -> None:
        """Let stalled reads go and block until no read is under way."""
        self._released.set()
        with self._changed:
            while not self._changed.wait_for(lambda: not self._num_reading) or self._is_taken_up():
                pass

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        (nbytes,) = self.get_each([Want(key, header, payload)])
        return nbytes

    def get_each(self, wants: Sequence[Want]) -> Iterator[int | None]:
        """Yield as ``Streaming`` says; so latency is paid once an exchange, and the line can be kept full."""
        with self._changed:
            self._num_reading += 1
            num_sound = self._num_sound(len(wants))
            self._num_asked += len(wants)
            line, late_line, speed = self._line, self._late_line, self._speed
        try:
            yield from each_of(line, wants[:num_sound])
            if num_sound < len(wants) and speed is not None and speed.trouble is Trouble.STALLS:
                self._released.wait()
            yield from each_of(late_line, wants[num_sound:])
        finally:
            with self._changed:
                self._num_reading -= 1
                self._changed.notify_all()

    def _num_sound(self, num: int) -> int:
        """Return how many of the next blocks come before any trouble."""
        if self._speed is None or self._speed.trouble is Trouble.NONE:
            return num
        return min(num, max(0, self._speed.trouble_after - self._num_asked))

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        self._backend.put(key, header, payload)

    def _is_taken_up(self) -> bool:
        """Say whether a queued read has begun within a moment."""
        return self._changed.wait_for(lambda: self._num_reading > 0, _SETTLED_S)


@dataclass(frozen=True, slots=True)
class FixedSplit:
    """Computes a fixed share of a prompt's blocks, from the head, and loads the others, whatever it costs."""

    computed_share: float
    weighs_costs = False

    def plan(self, request: PlanRequest) -> Plan:
        first = round(self.computed_share * len(request.tiers))
        choices = tuple(
            Choice.LOAD if tier == READY or (is_loadable(tier) and index >= first) else Choice.COMPUTE
            for index, tier in enumerate(request.tiers)
        )
        splits = Splits(request)
        prediction = splits.prediction(splits.at(first))
        return Plan(choices, prediction, f"the first {first} blocks are computed")


class Switch:
    """One policy after another in the place of one. Everything is stored, whatever a policy thinks of it."""

    weighs_costs = False

    def __init__(self) -> None:
        self.policy: ReloadPolicy = FixedSplit(1.0)

    def plan(self, request: PlanRequest) -> Plan:
        return self.policy.plan(request)


@dataclass(slots=True)
class Bench:
    """What is turned between runs, and the registry that puts it into a server. One server at a time."""

    switch: Switch
    line: Line | None = None

    def registry(self) -> Registry:
        """Return the built-in parts, with the line in the disk's place and the switch as a policy."""
        registry = Registry()
        factories = {**BUILT_IN, "disk": self._open_line}
        for name, factory in factories.items():
            registry.register(Kind.BACKEND, name, factory)
        register_policies(registry)
        registry.register(Kind.RELOAD, POLICY, lambda: self.switch)
        return registry

    def _open_line(self, path: Path) -> Line:
        self.line = Line(DiskBackend(path))
        return self.line


def policy_of(arm: Arm, registry: Registry) -> ReloadPolicy:
    """Return the policy that an arm stands for."""
    if arm.computed_share is not None:
        return FixedSplit(arm.computed_share)
    policy: ReloadPolicy = registry.get(Kind.RELOAD, arm.name)()
    return policy


class LeapingClock:
    """A clock that can be moved on while nothing happens, so that nobody waits for a tier's time-out."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._leapt_s = 0.0

    def clock(self) -> Clock:
        """Return the clock to hand in."""
        return Clock(monotonic_s=lambda: self._monotonic_s() + self._leapt_s)

    def leap(self, seconds: float) -> None:
        """Move the monotonic clock on."""
        self._leapt_s += seconds
