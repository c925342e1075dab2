"""Asking shared media what they hold: one exchange per tier, on its transfer threads."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from threading import Condition

from kvstore.absences import Cause
from kvstore.clock import Clock
from kvstore.frame import Header
from kvstore.keeping import KeepingIndex
from kvstore.loading import OnDone
from kvstore.placement import Placement
from kvstore.record import record_of
from kvstore.shared_tier import SharedTier
from kvstore.statistics import Count
from kvstore.tier import Tier


class Inquiry:
    """Questions to shared media, on their way. What is found is findable once it is done."""

    def __init__(
        self,
        tiers: Iterable[SharedTier],
        on_done: OnDone | None,
        on_abandoned: Callable[[SharedTier], None],
    ) -> None:
        """``on_abandoned`` is called for each of ``tiers`` that has not answered when it is given up."""
        self._pending = {tier.bit: tier for tier in tiers}
        self._on_done = on_done
        self._on_abandoned = on_abandoned
        self._is_wanted = True
        self._changed = Condition()

    def done(self) -> bool:
        """Say whether every tier has answered, well or not."""
        return not self._pending

    def wait(self, timeout_s: float) -> bool:
        """Block until ``done()``, at most ``timeout_s``; returns ``done()``."""
        with self._changed:
            return self._changed.wait_for(self.done, timeout_s)

    def abandon(self) -> None:
        """Give it up; never blocks. An answer that comes later is still entered; idempotent."""
        with self._changed:
            late = list(self._pending.values()) if self._is_wanted else []
            self._is_wanted = False
        for tier in late:
            self._on_abandoned(tier)

    def is_wanted(self) -> bool:
        """Say whether anybody still waits for it."""
        return self._is_wanted

    def answered(self, tier: SharedTier) -> bool:
        """Note that ``tier`` has answered; says whether it was the last and somebody waits for it."""
        with self._changed:
            self._pending.pop(tier.bit, None)
            self._changed.notify_all()
            return self._is_wanted and not self._pending

    def notify(self) -> None:
        """Tell whoever asked that it is done."""
        if self._on_done is not None:
            self._on_done()


class Inquiries:
    """Asks the tiers on shared media, and enters what they answer into the index. Thread-safe."""

    def __init__(
        self, tiers: Sequence[Tier], index: KeepingIndex, placement: Placement, clock: Clock
    ) -> None:
        self._tiers = tuple(tier for tier in tiers if isinstance(tier, SharedTier))
        self._index = index
        self._placement = placement
        self._clock = clock

    def begin(
        self, keys: Sequence[bytes], deadline_s: float, on_done: OnDone | None, block_bytes: int | None
    ) -> Inquiry | None:
        """Ask; see ``TieredStore.inquire``. Never blocks."""
        questions = [(tier, wanted) for tier in self._tiers if (wanted := self._wanted(tier, keys))]
        if not questions:
            return None

        def note_if_late(tier: SharedTier) -> None:
            if self._clock.monotonic_s() >= deadline_s:
                tier.note_late_inquiry()

        inquiry = Inquiry([tier for tier, _ in questions], on_done, note_if_late)
        for tier, wanted in questions:
            ask = partial(self._run, inquiry, tier, wanted, block_bytes)
            if not tier.is_readable() or not tier.pool.ask(ask):
                tier.counters.add(Count.REFUSED_INQUIRIES)
                inquiry.answered(tier)
        return inquiry

    def _wanted(self, tier: SharedTier, keys: Sequence[bytes]) -> list[bytes]:
        """Return those of ``keys`` that no faster tier has."""
        faster = self._placement.findable_mask() & ((1 << tier.bit) - 1)
        there = self._index.peek(keys, faster, self._clock.wall_ms())
        return [key for key, tiers in zip(keys, there, strict=True) if not tiers]

    def _run(
        self, inquiry: Inquiry, tier: SharedTier, keys: Sequence[bytes], block_bytes: int | None
    ) -> None:
        try:
            if inquiry.is_wanted() and not tier.pool.is_closing:
                self._ask(tier, keys, block_bytes)
        finally:
            if inquiry.answered(tier):
                inquiry.notify()

    def _ask(self, tier: SharedTier, keys: Sequence[bytes], block_bytes: int | None) -> None:
        # Before asking: what is stored meanwhile is not denied, and what is removed meanwhile not found.
        believed, known = self._index.held_and_known(tier.bit, keys)
        answer = tier.ask(keys)
        if answer is None:
            return
        now_ms = self._clock.wall_ms()
        found: list[Header] = []
        for key, header in zip(keys, answer, strict=True):
            if (
                header is not None
                and header.key == key
                and self._is_usable(tier, header, now_ms, block_bytes)
            ):
                found.append(header)
            elif key in believed:
                self._denied(tier, key, header, now_ms)
        beyond = self._enter(tier, found, known)
        if beyond:
            tier.pool.write(partial(self._enter_behind, tier, beyond))

    def _is_usable(self, tier: SharedTier, header: Header, now_ms: int, block_bytes: int | None) -> bool:
        is_of_our_size = block_bytes in {None, header.raw_bytes}
        return is_of_our_size and not header.expiry.is_over(now_ms) and tier.knows(header)

    def _denied(self, tier: SharedTier, key: bytes, header: Header | None, now_ms: int) -> None:
        """Drop what was believed to be there: it is not, it has ended, or it cannot be read here."""
        if header is None or header.key != key:
            if self._placement.remove(tier, key, Cause.MISSING, even_if_held=True):
                tier.counters.add(Count.MISSING)
        elif not header.expiry.is_over(now_ms):
            if self._placement.forget(tier, key, Cause.MISSING, even_if_held=True):
                tier.counters.add(Count.UNKNOWN_FORM)
        elif self._placement.forget(tier, key, Cause.EXPIRED, even_if_held=True):
            tier.counters.add(Count.EXPIRATIONS)

    def _enter(
        self, tier: SharedTier, headers: Sequence[Header], known: Container[bytes]
    ) -> Sequence[Header]:
        """Enter blocks for which there is room, or others' blocks to forget; return the rest."""
        for number, header in enumerate(headers):
            entered = self._index.found(
                tier.bit, record_of(header), tier.footprint(header.stored_bytes), self._clock.monotonic_s(),
                was_known=header.key in known,
            )  # fmt: skip
            if entered is None:
                return headers[number:]
            if entered:
                self._found(tier, header)
        return ()

    def _enter_behind(self, tier: SharedTier, headers: Sequence[Header]) -> None:
        """Enter blocks for which older ones of our own have to go; on the writing thread, which deletes."""
        for header in headers:
            facts, now_ms = record_of(header), self._clock.wall_ms()
            if tier.pool.is_closing:
                return
            is_late = header.expiry.is_over(now_ms)
            room = None if is_late else self._placement.make_room(tier, facts, header.stored_bytes)
            if room is not None:
                self._index.settle(tier.bit, room, facts, self._clock.monotonic_s(), is_theirs=True)
                self._found(tier, header)

    def _found(self, tier: SharedTier, header: Header) -> None:
        tier.counters.add(Count.FOUND_BLOCKS)
        self._index.restore_pin(tier.bit, header.key, header.pinned_ms)
