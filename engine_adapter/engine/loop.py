"""One turn after another: admit, take loads in, compute a step, hand out tokens, publish blocks."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from engine_adapter.engine.accounts import Accounts
from engine_adapter.engine.announcing import Announcer
from engine_adapter.engine.batch import Batch, Choice
from engine_adapter.engine.departures import Departures
from engine_adapter.engine.events import COMPUTED, Delta, Finished, Reason
from engine_adapter.engine.finding import Finder
from engine_adapter.engine.foreseeing import Foreseeing
from engine_adapter.engine.models import LoadedModel
from engine_adapter.engine.planner import Order, Planner
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.rechecking import Rechecker
from engine_adapter.engine.reporting import Tally
from engine_adapter.engine.request import CacheUse, Request
from engine_adapter.engine.runner import ModelRunner
from engine_adapter.engine.scheduler import Scheduler, Work
from engine_adapter.engine.sequence import Sequence
from engine_adapter.engine.verifying import Verifier
from kvstore.clock import Clock
from kvstore.errors import InvariantError

_log = logging.getLogger(__name__)

_COPY_POLL_S = 0.001


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
        planner: Planner,
        verifier: Verifier,
        accounts: Accounts,
        announcer: Announcer,
        rechecker: Rechecker,
        clock: Clock,
    ) -> None:
        self.tally = Tally()
        self.departures = Departures()
        self._accounts = accounts
        self._announcer = announcer
        self._rechecker = rechecker
        self._planner = planner
        self._verifier = verifier
        self._foreseeing = Foreseeing(prefix, clock)
        self._finder = Finder(prefix, planner, verifier, accounts, clock)
        self._open: dict[int, Sequence] = {}
        self._model = model
        self._runner = runner
        self._prefix = prefix
        self._scheduler = scheduler
        self._clock = clock

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence in, with its forks."""
        self._rechecker.interrupt()
        self._open.update((one.number, one) for one in (sequence, *sequence.forks))
        self.departures.began(self._clock.monotonic_s())
        self._scheduler.add(sequence)
        self._foreseeing.came(sequence)
        with self._blaming(sequence):
            self._prefix.ask_ahead(sequence)

    def cancel(self, numbers: Iterable[int]) -> None:
        """End the sequences of those numbers that are still open."""
        for number in numbers:
            if sequence := self._open.get(number):
                self._finish(sequence, "cancelled")

    def end(self, failure: str) -> None:
        """End every sequence; what was computed is stored, unless a ``failure`` made it doubtful."""
        for sequence in list(self._open.values()):
            self._finish(sequence, "error" if failure else "cancelled", failure or None)
        if failure:
            self._prefix.traffic.drop_all()
        else:
            self._prefix.traffic.store_all()
        self._foreseeing.waits(())

    def turn(self) -> bool:
        """Do what can be done now; ``False`` when there was nothing, so that it is time to wait."""
        self._prefix.let_go_of_ended()
        if len(self._scheduler.waiting) > 1:  # whoever is admitted must not evict what the next one needs
            self._foreseeing.waits(self._scheduler.waiting)
        has_moved = self._admit()
        self._foreseeing.waits(self._scheduler.waiting)
        has_moved |= self._collect()
        has_moved |= self._make_room()
        self._review()
        works = self._scheduler.plan()
        if works:
            self._step(works)
        has_moved |= self._prefix.traffic.tend(is_idle=not works)
        is_busy = has_moved or bool(works)
        return self._rechecker.turn(is_idle=not (is_busy or self._open)) or is_busy

    def idle_s(self) -> float | None:
        """Return how long to wait for the first thing that is due; ``None``: nothing is."""
        running = self._scheduler.running
        due = [sequence.ownership.next_deadline_s for sequence in running]
        due.append(self._planner.next_review_s(running))
        due += [sequence.answer_due_s for sequence in running]
        due.append(self._rechecker.due_s())
        if self._prefix.traffic.is_under_way:
            due.append(self._clock.monotonic_s() + _COPY_POLL_S)
        first_s = min((due_s for due_s in due if due_s is not None), default=None)
        return None if first_s is None else max(0.0, first_s - self._clock.monotonic_s())

    def change_model(self) -> None:
        """Use no KV of the old weights any more; sequences under way go on without the cache."""
        for sequence in self._scheduler.running:
            sequence.cache = CacheUse.OFF
            sequence.ownership.close()
        self._rechecker.forget_now()
        self._runner.model_changed()
        self._prefix.change_namespace(self._model.model_changed())

    def check(self) -> None:
        """Raise ``InvariantError`` unless pool, scheduler and open sequences add up."""
        self._prefix.traffic.store_all()
        self._prefix.pool.check()
        self._scheduler.check()
        known = [*self._scheduler.waiting, *self._scheduler.running]
        if len(self._open) != len(known) + sum(len(sequence.forks) for sequence in known):
            raise InvariantError("an open sequence neither waits nor runs nor is to be forked")
        self._foreseeing.check()

    def _admit(self) -> bool:
        num_admitted = 0
        while sequence := self._scheduler.admit():
            num_admitted += 1
            if sequence.times.admitted_s is None:
                sequence.times.admitted_s = self._clock.monotonic_s()
            with self._blaming(sequence):
                self._finder.look_up(sequence)
        return num_admitted > 0

    def _collect(self) -> bool:
        has_moved = False
        for sequence in list(self._scheduler.running):
            with self._blaming(sequence):
                has_moved |= self._finder.collect(sequence)
        return has_moved

    def _review(self) -> None:
        order = Order(list(self._scheduler.running), len(self._scheduler.waiting))
        for sequence in order.running:
            with self._blaming(sequence):
                self._planner.review(sequence, order)

    def _make_room(self) -> bool:
        num_preempted = self._scheduler.num_preempted
        exhausted = self._scheduler.make_room()
        for sequence in exhausted:
            self._finish(sequence, "length")
        return bool(exhausted) or self._scheduler.num_preempted > num_preempted

    def _step(self, works: list[Work]) -> None:
        """Compute ``works`` in one batch; the caller hears of a token before its block is stored."""
        self.tally.num_steps += 1
        batch, began_s = Batch(works), self._clock.monotonic_s()
        try:
            choices = batch.compute(self._runner)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end other requests
            _log.exception("a step failed")
            for work in works:
                self._finish(work.sequence, "error", f"the step failed: {error}")
            return
        now_s = self._clock.monotonic_s()
        if batch.is_typical:
            self._planner.costs.note_step(batch.cost, now_s - began_s, now_s)
        for work in works:
            work.sequence.move_to(work.end, COMPUTED)
        ended = self._accept_all(choices)
        self._publish(works)
        self._compare(batch.choosing)
        ended += self._fork(batch)
        for sequence, reason in ended:
            self._finish(sequence, reason)

    def _accept_all(self, choices: list[Choice]) -> list[tuple[Sequence, Reason]]:
        """Accept each sequence's next token; returns those that end with it."""
        ended: list[tuple[Sequence, Reason]] = []
        for choice in choices:
            with self._blaming(choice.sequence):
                self._tell_of_prompt(choice.sequence)
                if reason := self._accept(choice):
                    ended.append((choice.sequence, reason))
        return ended

    def _fork(self, batch: Batch) -> list[tuple[Sequence, Reason]]:
        """Begin the further answers to prompts that are complete now; returns those that end at once."""
        ended: list[tuple[Sequence, Reason]] = []
        for sequence in batch.choosing:
            if sequence.forks:
                with self._blaming(sequence):
                    ended += self._accept_all(batch.choose_more(sequence, self._scheduler.fork(sequence)))
        return ended

    def _tell_of_prompt(self, sequence: Sequence) -> None:
        if (collector := sequence.prompt_logprobs) is not None:
            sequence.prompt_logprobs = None
            sequence.on_event(Delta("", (), prompt_logprobs=collector.found, index=sequence.index))

    def _accept(self, choice: Choice) -> Reason | None:
        """Add a chosen token and tell the caller; returns why the sequence ends here, if it does."""
        sequence, token = choice.sequence, choice.token
        if token is None:
            raise ArithmeticError("the model's logits are not numbers")
        sampling, matcher = sequence.request.sampling, sequence.matcher
        if matcher is not None:
            matcher.accept(token)
        if token in self._model.eos_token_ids and not sampling.ignore_eos:
            return "stop"
        sequence.tokens.append(token)
        since_s = sequence.times.note_token(self._clock.monotonic_s())
        text, is_stopped = sequence.text.add(token)
        likely = () if choice.logprobs is None else (choice.logprobs,)
        sequence.on_event(Delta(text, (token,), since_s, likely, index=sequence.index))
        if is_stopped or (matcher is not None and matcher.is_complete):
            return "stop"
        is_full = len(sequence.tokens) >= self._model.context_tokens
        return "length" if is_full or sequence.num_generated == sampling.max_tokens else None

    def _publish(self, works: list[Work]) -> None:
        for work in works:
            if work.sequence.number in self._open:
                with self._blaming(work.sequence):
                    self._prefix.publish(work.sequence, work.start)

    def _compare(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence.number in self._open:
                with self._blaming(sequence):
                    self._verifier.compare(sequence)

    def _finish(self, sequence: Sequence, reason: Reason, error: str | None = None) -> None:
        """End ``sequence``, once: give back all it holds, then tell the caller; its forks to be end too."""
        if self._open.pop(sequence.number, None) is None:
            return
        self._verifier.dismiss(sequence)
        sequence.leave_tiers()
        self._scheduler.remove(sequence)
        if sequence.request.sampling.n == 1 or not self._goes_on(sequence.request):
            self._foreseeing.ended(sequence, reason)
        usage = sequence.usage()
        self.tally.add(reason, usage)
        self.departures.ended(self._clock.monotonic_s(), is_last=not self._open)
        try:
            self._accounts.ended(sequence, reason, usage)
            self._announcer.ended(sequence, reason, usage)
            self._rechecker.remember(sequence, reason)
        except Exception:  # noqa: BLE001 - likewise
            _log.exception("a request's account could not be kept")
        try:
            if rest := sequence.text.flush():
                sequence.on_event(Delta(rest, (), index=sequence.index))
            sequence.on_event(Finished(reason, usage, error, sequence.index))
        except Exception:  # noqa: BLE001 - a caller that is gone must not end other requests
            _log.exception("a caller's on_event failed")
        while sequence.forks:  # there is no prompt for them to go on from
            self._finish(sequence.forks.pop(0), reason, error)

    def _goes_on(self, request: Request) -> bool:
        """Say whether there are answers to it that have not ended."""
        return any(sequence.request is request for sequence in self._open.values())

    @contextmanager
    def _blaming(self, sequence: Sequence) -> Iterator[None]:
        """Let an error inside end ``sequence`` alone."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - likewise
            _log.exception("a request failed")
            self._finish(sequence, "error", f"{type(error).__name__}: {error}")
