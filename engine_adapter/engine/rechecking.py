"""Computes prompts again when nobody wants anything, and compares what tiers have stored of them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine_adapter.engine.audit import Audit, AuditBook, WrongCopy
from engine_adapter.engine.events import Reason
from engine_adapter.engine.idle_pace import IdlePace
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.remembering import PromptMemory, Remembered
from engine_adapter.engine.sequence import Sequence
from engine_adapter.engine.workbench import Workbench
from engine_adapter.engine.worker import Message
from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.tier import DEVICE

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
_NUM_DRAWN = 4
_SWEEP_S = 1.0
_NUM_SWEPT = 16
_NUM_SWEPT_WITH_EACH = 2


class _Copy(NamedTuple):
    """A block of a prompt as one tier has it."""

    block: int
    tier: str


class _Reading(NamedTuple):
    """A copy on its way into memory of ours."""

    done: Future[bool]
    into: memoryview


@dataclass(slots=True)
class _Round:
    """One prompt that is computed once more, and the copies of its blocks to compare, in their order."""

    prompt: Remembered
    keys: list[bytes]
    copies: deque[_Copy]
    num_tokens: int
    num_computed: int = 0
    reading: _Reading | None = None

    @property
    def awaits_copy(self) -> bool:
        """Whether there is nothing to compute, and nothing to compare yet."""
        return self.num_computed >= self.num_tokens and not self.has_read

    @property
    def has_read(self) -> bool:
        """Whether no copy is on its way."""
        return self.reading is None or self.reading.done.done()


class Rechecker:
    """Finds stored blocks that are not what their tokens give, and has them quarantined.

    ::

        turn      compute  compute  compare  compare  compute  compare  ...   each at most one step
        reading   |== copy 0 ==|    |= 1 =|  |= 2 =|                          by the tiers' own threads

    It computes on a bench of its own, from the first token on and from tokens alone, so that no request,
    policy or end is touched; a request that comes goes first, and it goes on later where it was. Used by the
    engine's thread alone but for ``share``, ``set_share``, ``last_wrong``, ``facts`` and ``forget``.
    """

    def __init__(
        self,
        prefix: PrefixCache,
        bench: Workbench,
        share: float,
        memory_bytes: int,
        clock: Clock,
        tell: Callable[[Message], None],
    ) -> None:
        """``tell`` has something done on the engine's thread, and wakes it."""
        self.bench = bench
        self._prefix = prefix
        self._store = prefix.store
        self._clock = clock
        self._tell = tell
        self._memory = PromptMemory(memory_bytes)
        self._pace = IdlePace(share)
        self._book = AuditBook(self._store.copies)
        self._round: _Round | None = None
        self._look_s = 0.0
        self._sweep_s = 0.0

    @property
    def share(self) -> float:
        """How much of the idle time it may take; 0: it does nothing, and remembers nothing."""
        return self._pace.share

    def set_share(self, share: float) -> None:
        """Change it. Raises ``ConfigError`` beyond 0 to 1, or where it was 0 at the start."""
        if not 0 <= share <= 1:
            raise ConfigError("recheck_share", "must lie between 0 and 1")
        if share and not self.bench.num_blocks:
            reason = "the device has no blocks set aside for it: start with recheck_share above 0"
            raise ConfigError("recheck_share", reason)
        self._pace.share = share
        self._tell(_nothing if share else self.forget_now)

    @property
    def last_wrong(self) -> tuple[WrongCopy, ...]:
        """The latest copies that were wrong, the last first."""
        return self._book.last_wrong

    def facts(self) -> Audit:
        """Return all that was found so far; looks once at every block that was compared."""
        return replace(
            self._book.facts(),
            share=self.share,
            num_prompts=self._memory.num_prompts,
            memory_bytes=self._memory.nbytes,
            spent_s=self._pace.spent_s,
            idle_s=self._pace.idle_s,
        )

    def forget(self) -> None:
        """Forget the tokens of all prompts, soon.

        Those of which no tier has a block any more are forgotten within some seconds anyway.
        """
        self._tell(self.forget_now)

    def forget_now(self) -> None:
        """Do so at once, on the engine's thread."""
        self._memory.clear()
        self._round = None

    def remember(self, sequence: Sequence, reason: Reason) -> None:
        """Keep the tokens of a request that has ended, if it left blocks behind."""
        if not self.share or not sequence.cache.writes or reason == "error":
            return
        keys = self._prefix.computed_keys(sequence)[: self.bench.num_blocks]
        if keys:
            tokens = sequence.tokens[: len(keys) * sequence.namespace.block_tokens]
            self._memory.add(sequence.namespace, sequence.request.lora, tokens, keys)
        self._memory.forget_some(_NUM_SWEPT_WITH_EACH, self._is_gone)

    def interrupt(self) -> None:
        """Take note that a request has come."""
        self._pace.note(self._clock.monotonic_s(), is_idle=False)

    def turn(self, *, is_idle: bool) -> bool:
        """Do a piece of work if it is time for one; says whether it was."""
        began_s = self._clock.monotonic_s()
        self._pace.note(began_s, is_idle=is_idle)
        if is_idle and began_s >= self._sweep_s:
            self._sweep_s = began_s + _SWEEP_S
            self._memory.forget_some(_NUM_SWEPT, self._is_gone)
        due_s = self._work_due_s()
        if due_s is None or due_s > began_s:
            return False
        try:
            self._do_some()
        except Exception:  # noqa: BLE001 - whatever it is, it must not end what requests wait for
            _log.exception("stored blocks could not be computed once more")
            self._book.note_failure()
            self._give_up()
        self._pace.spend(self._clock.monotonic_s() - began_s)
        return True

    def due_s(self) -> float | None:
        """Return when there is something to do while it stays idle; ``None``: nothing to be waited for."""
        if not self._pace.is_idle or not self._memory.num_prompts:
            return None
        work_s = self._work_due_s()
        return self._sweep_s if work_s is None else min(work_s, self._sweep_s)

    def _work_due_s(self) -> float | None:
        due_s = self._pace.due_s()
        if due_s is None or not self._memory.num_prompts:
            return None
        if self._round is None:
            return max(due_s, self._look_s)
        return None if self._round.awaits_copy else due_s

    def _do_some(self) -> None:
        now = self._round
        if now is None or now.prompt not in self._memory:
            self._look_s = self._clock.monotonic_s() + _LOOK_S
            self._round = self._next_round()
        elif self._is_comparable(now):
            self._compare_next(now)
        elif now.num_computed < now.num_tokens:
            tokens = now.prompt.tokens[: now.num_tokens]
            now.num_computed = self.bench.compute(tokens, now.num_computed, now.prompt.lora)

    def _next_round(self) -> _Round | None:
        """Draw some prompts, and return the one with the most copies that were not compared of late."""
        drawn = [self._round_of(prompt) for prompt in self._memory.sample(_NUM_DRAWN)]
        best = max(drawn, key=lambda one: len(one.copies), default=None)
        return best if best is not None and best.copies else None

    def _round_of(self, prompt: Remembered) -> _Round:
        keys, copies = prompt.keys, deque[_Copy]()
        now_s = self._clock.monotonic_s()
        places = zip(self._store.peek(keys), self._store.copies.where(keys), strict=True)
        for index, (first, below) in enumerate(places):
            for tier in (DEVICE, *below) if first == DEVICE else below:
                if not self._book.is_fresh(keys[index], tier, now_s):
                    copies.append(_Copy(index, tier))
        end = copies[-1].block + 1 if copies else 0
        return _Round(prompt, keys, copies, end * prompt.namespace.block_tokens)

    def _is_comparable(self, now: _Round) -> bool:
        """Say whether the next copy can be compared; begins to read it if need be."""
        block, tier = now.copies[0]
        if now.reading is None and tier != DEVICE:
            into = memoryview(bytearray(self._prefix.pool.shape.block_bytes))
            now.reading = _Reading(self._store.copies.read_into(now.keys[block], tier, into), into)
            now.reading.done.add_done_callback(lambda _: self._tell(_nothing))
        return now.has_read and now.num_computed >= (block + 1) * now.prompt.namespace.block_tokens

    def _compare_next(self, now: _Round) -> None:
        copy, reading = now.copies.popleft(), now.reading
        key, stored, now.reading = now.keys[copy.block], None, None
        if copy.tier == DEVICE:
            stored = self.bench.published(key)
        elif reading is not None and reading.done.result():
            stored = reading.into
        if stored is not None:
            self._compare(now, copy, key, stored)
        if self._round is not None and not now.copies:
            self._round = None

    def _compare(self, now: _Round, copy: _Copy, key: bytes, stored: memoryview) -> None:
        now_ms, space = self._clock.wall_ms(), now.prompt.namespace
        if self.bench.is_close(copy.block, stored):
            self._book.note(key, copy.tier, len(stored), self._clock.monotonic_s(), now_ms)
            return
        self._store.quarantine(key)
        _log.error("a block of %s in tier %s is wrong: it is quarantined", space.label, copy.tier)
        wrong = WrongCopy(key, copy.block, copy.tier, space.digest, space.label, space.tenant, now_ms)
        self._book.note_wrong(wrong, len(stored))
        self._give_up()

    def _give_up(self) -> None:
        if self._round is not None:
            self._memory.forget(self._round.prompt)
        self._round = None

    def _is_gone(self, prompt: Remembered) -> bool:
        return not any(any(self._store.peek(keys)) for keys in prompt.parts())


def _nothing() -> None:
    """Wake the engine's thread."""
