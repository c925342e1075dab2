"""What tiers have of a prompt: looked up at admission and when media answer, and taken in as it comes."""

from __future__ import annotations

from engine_adapter.engine.accounts import Accounts
from engine_adapter.engine.planner import Planner
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.request import Mode
from engine_adapter.engine.sequence import Sequence
from engine_adapter.engine.verifying import Verifier
from kvstore.clock import Clock
from kvstore.leases import Hit
from policies.planning import is_loadable


class Finder:
    """Finds blocks for running sequences. Used by the engine's thread alone."""

    def __init__(
        self, prefix: PrefixCache, planner: Planner, verifier: Verifier, accounts: Accounts, clock: Clock
    ) -> None:
        self._prefix = prefix
        self._planner = planner
        self._verifier = verifier
        self._accounts = accounts
        self._clock = clock

    def look_up(self, sequence: Sequence) -> None:
        """Find what can be loaded, and let it be."""
        hit = self._prefix.look_up(sequence)
        if hit is None:
            return
        sequence.ownership.offer(hit)
        if not sequence.num_generated:
            self._accounts.looked_up(sequence, hit)
        is_first = sequence.planning is None and sequence.ownership.is_open(0)
        if sequence.mode is Mode.VERIFY and is_first and self._verifier.selects():
            self._verify(sequence, hit)
        if sequence.inquiry is not None and not sequence.inquiry.done():
            sequence.answer_due_s = self._clock.monotonic_s() + self._planner.answer_s(sequence)

    def collect(self, sequence: Sequence) -> bool:
        """Take in what has come for ``sequence``, answers of media and loads; says whether anything has."""
        has_moved = self._hear_answer(sequence)
        if sequence.ownership.num_loading:
            has_moved |= self._collect_loads(sequence)
        return has_moved

    def _hear_answer(self, sequence: Sequence) -> bool:
        """Look up once more what shared media have said by now, or when the lease is soon over."""
        if sequence.is_decoding:
            sequence.leave_tiers()
            return False
        inquiry = sequence.inquiry
        has_answer = inquiry is not None and inquiry.done()
        if has_answer:
            sequence.inquiry, sequence.answer_due_s = None, None
        if has_answer or self._prefix.is_lease_ending(sequence):
            self.look_up(sequence)
        return has_answer

    def _collect_loads(self, sequence: Sequence) -> bool:
        began_s = self._clock.monotonic_s()
        has_moved = self._prefix.collect(sequence, began_s)
        sequence.times.note_load(began_s, self._clock.monotonic_s() if has_moved else None)
        return has_moved

    def _verify(self, sequence: Sequence, hit: Hit) -> None:
        sequence.is_served = False
        tiers = sequence.ownership.tiers
        self._verifier.summon(sequence, hit, lambda index: is_loadable(tiers[index]))
