"""One turn after another: admit, take loads in, compute a step, hand out tokens, publish blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.reporting import Tally
from engine_adapter.engine.request import COMPUTED, CacheUse, Delta, Finished, Reason
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.engine.sampling import choose_tokens
from engine_adapter.engine.scheduler import Scheduler, Work
from engine_adapter.engine.sequence import Sequence
from kvstore.clock import Clock
from kvstore.errors import InvariantError

_log = logging.getLogger(__name__)


class Loop:
    """The work of the engine's thread, which alone uses it.

    An error while working on one sequence ends that sequence alone; an error in a step ends those
    that took part in it.
    """

    def __init__(
        self,
        model: LoadedModel,
        runner: ModelRunner,
        prefix: PrefixCache,
        scheduler: Scheduler,
        clock: Clock,
    ) -> None:
        self.tally = Tally()
        self._open: dict[int, Sequence] = {}
        self._model = model
        self._runner = runner
        self._prefix = prefix
        self._scheduler = scheduler
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence in."""
        self._open[sequence.number] = sequence
        self._scheduler.add(sequence)

    def cancel(self, number: int) -> None:
        """End the sequence of that number, if it is still open."""
        if sequence := self._open.get(number):
            self._finish(sequence, "cancelled")

    def end_all(self, reason: Reason, error: str | None) -> None:
        """End every sequence."""
        for sequence in list(self._open.values()):
            self._finish(sequence, reason, error)

    def turn(self) -> bool:
        """Do what can be done now; ``False`` when there was nothing, so that it is time to wait."""
        has_moved = self._admit()
        has_moved |= self._collect()
        has_moved |= self._make_room()
        works = self._scheduler.plan()
        if works:
            self._step(works)
        has_stored = self._prefix.store_some(is_idle=not works)
        return has_moved or has_stored or bool(works)

    def idle_s(self) -> float | None:
        """Return how long to wait for the first load's deadline; ``None`` without any."""
        deadlines = [sequence.ownership.next_deadline_s for sequence in self._scheduler.running]
        first_s = min((deadline_s for deadline_s in deadlines if deadline_s is not None), default=None)
        return None if first_s is None else max(0.0, first_s - self._clock.monotonic_s())

    def change_model(self) -> None:
        """Use no KV of the old weights any more; sequences under way go on without the cache."""
        for sequence in self._scheduler.running:
            sequence.cache = CacheUse.OFF
            sequence.ownership.close()
        self._prefix.change_namespace(self._model.model_changed())

    def check(self) -> None:
        """Raise ``InvariantError`` unless pool, scheduler and open sequences add up."""
        self._prefix.store_all()
        self._prefix.pool.check()
        self._scheduler.check()
        if len(self._open) != len(self._scheduler.waiting) + len(self._scheduler.running):
            raise InvariantError("an open sequence neither waits nor runs")

    def _admit(self) -> bool:
        num_admitted = 0
        while sequence := self._scheduler.admit():
            num_admitted += 1
            if sequence.times.admitted_s is None:
                sequence.times.admitted_s = self._clock.monotonic_s()
            with self._blaming(sequence):
                self._prefix.plan(sequence, len(self._scheduler.waiting), len(self._scheduler.running))
        return num_admitted > 0

    def _collect(self) -> bool:
        has_moved = False
        for sequence in list(self._scheduler.running):
            if sequence.ownership.num_loading:
                with self._blaming(sequence):
                    has_moved |= self._collect_for(sequence)
        return has_moved

    def _collect_for(self, sequence: Sequence) -> bool:
        times, now_s = sequence.times, self._clock.monotonic_s()
        if times.load_started_s is None:
            times.load_started_s = now_s
        has_moved = self._prefix.collect(sequence, now_s)
        if has_moved:
            times.loaded_s = self._clock.monotonic_s()
        return has_moved

    def _make_room(self) -> bool:
        num_preempted = self._scheduler.num_preempted
        exhausted = self._scheduler.make_room()
        for sequence in exhausted:
            self._finish(sequence, "length")
        return bool(exhausted) or self._scheduler.num_preempted > num_preempted

    def _step(self, works: list[Work]) -> None:
        """Compute ``works`` in one batch; the caller hears of a token before its block is stored."""
        self.tally.num_steps += 1
        choosing = [work.sequence for work in works if work.needs_logits]
        try:
            logits = self._runner.forward([_chunk(work) for work in works])
            tokens = choose_tokens(logits, [sequence.sampler for sequence in choosing])
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end other requests
            _log.exception("a step failed")
            for work in works:
                self._finish(work.sequence, "error", f"the step failed: {error}")
            return
        for work in works:
            work.sequence.move_to(work.end, COMPUTED)
        ended: list[tuple[Sequence, Reason]] = []
        for sequence, token in zip(choosing, tokens, strict=True):
            with self._blaming(sequence):
                if reason := self._accept(sequence, token):
                    ended.append((sequence, reason))
        self._publish(works)
        for sequence, reason in ended:
            self._finish(sequence, reason)

    def _accept(self, sequence: Sequence, token: int | None) -> Reason | None:
        """Add a chosen token and tell the caller; returns why the sequence ends here, if it does."""
        if token is None:
            raise ArithmeticError("the model's logits are not numbers")
        sampling = sequence.request.sampling
        if token in self._model.eos_token_ids and not sampling.ignore_eos:
            return "stop"
        sequence.tokens.append(token)
        since_s = sequence.times.note_token(self._clock.monotonic_s())
        text, is_stopped = sequence.text.add(token)
        sequence.on_event(Delta(text, (token,), since_s))
        if is_stopped:
            return "stop"
        is_full = len(sequence.tokens) >= self._model.context_tokens
        return "length" if is_full or sequence.num_generated == sampling.max_tokens else None

    def _publish(self, works: list[Work]) -> None:
        for work in works:
            if work.sequence.number in self._open:
                with self._blaming(work.sequence):
                    self._prefix.publish(work.sequence, work.start)

    def _finish(self, sequence: Sequence, reason: Reason, error: str | None = None) -> None:
        """End ``sequence``, once: give back all it holds, then tell the caller."""
        if self._open.pop(sequence.number, None) is None:
            return
        self._scheduler.remove(sequence)
        usage = sequence.usage()
        self.tally.add(reason, usage)
        try:
            if rest := sequence.text.flush():
                sequence.on_event(Delta(rest, ()))
            sequence.on_event(Finished(reason, usage, error))
        except Exception:  # noqa: BLE001 - a caller that is gone must not end other requests
            _log.exception("a caller's on_event failed")

    @contextmanager
    def _blaming(self, sequence: Sequence) -> Iterator[None]:
        """Let an error inside end ``sequence`` alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - likewise
            _log.exception("a request failed")
            self._finish(sequence, "error", f"{type(error).__name__}: {error}")


def _chunk(work: Work) -> Chunk:
    sequence = work.sequence
    return Chunk(sequence.tokens[work.start : work.end], work.start, sequence.blocks, work.needs_logits)
