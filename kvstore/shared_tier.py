"""A tier whose medium other processes write to as well, so that it has to be asked what it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvstore.clock import Clock
from kvstore.errors import BackendError
from kvstore.frame import Header
from kvstore.keys import KEY_BYTES
from kvstore.seams import Codec, Lending, SharedMedium
from kvstore.statistics import Count, TierHealth
from kvstore.tier import MemoryTier, Tier, TierSpec


class SharedTier(Tier):
    """A tier on a medium that can be asked. Its budget bounds what we have stored and know of there."""

    def __init__(
        self, spec: TierSpec, medium: SharedMedium, bit: int, clock: Clock, codecs: Iterable[Codec]
    ) -> None:
        super().__init__(spec, bit, clock, codecs)
        self._medium = medium

    def ask(self, keys: Sequence[bytes]) -> Sequence[Header | None] | None:
        """Return the header of each block that is there; blocks on the medium. ``None``: no answer."""
        if not self._reading.may():
            self.counters.add(Count.REFUSED_INQUIRIES)
            return None
        answer = self._reading.attempt(lambda: self._answer(keys), Count.READ_FAULTS)
        if answer is not None:
            self.counters.add(Count.INQUIRIES)
        return answer

    def discover(self, enter: Callable[[Header], None], stop: Callable[[], bool]) -> None:
        """Find out as well whether the medium is there, so that ``health`` knows from the beginning."""
        super().discover(enter, stop)
        self._knock()

    def health(self, num_stuck: int) -> TierHealth:
        """Return the tier's state; a medium that was left out for a while is asked again, behind."""
        if self._reading.paused_for() and self._reading.may():
            self.pool.ask(self._knock)
        return super().health(num_stuck)

    def note_late_inquiry(self) -> None:
        """Tell the breaker that an inquiry was given up at its deadline, which is a fault like any other."""
        self._reading.failed(Count.LATE_INQUIRIES, TimeoutError("inquiries are not answered in time"))

    def _knock(self) -> None:
        """Ask for a block that nobody has; blocks on the medium, which is left out if it does not answer."""
        try:
            self._answer([bytes(KEY_BYTES)])
        except Exception as error:  # noqa: BLE001  a plugin may raise anything; a fault is counted, not told
            self._reading.failed(Count.READ_FAULTS, error, opens=True)
        else:
            self._reading.succeeded()

    def _answer(self, keys: Sequence[bytes]) -> Sequence[Header | None]:
        answer = self._medium.resident(keys)
        if len(answer) != len(keys):
            raise BackendError(self.name, "resident", f"{len(answer)} answers to {len(keys)} questions")
        return answer


def make_tier(spec: TierSpec, bit: int, clock: Clock, codecs: Iterable[Codec] = ()) -> Tier:
    """Return the tier for a backend, by what it can do."""
    if isinstance(spec.backend, Lending):
        return MemoryTier(spec, spec.backend, bit, clock)
    if isinstance(spec.backend, SharedMedium):
        return SharedTier(spec, spec.backend, bit, clock, codecs)
    return Tier(spec, bit, clock, codecs)
