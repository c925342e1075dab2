"""A tier whose medium other processes write to as well, so that it has to be asked what it holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvstore.clock import Clock
from kvstore.errors import BackendError
from kvstore.frame import Header
from kvstore.seams import Codec, Lending, SharedMedium
from kvstore.statistics import Count
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

    def note_late_inquiry(self) -> None:
        """Tell the breaker that an inquiry was given up at its deadline, which is a fault like any other."""
        self._reading.failed(Count.LATE_INQUIRIES, TimeoutError("inquiries are not answered in time"))

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
