"""Tells subscribers of each request that has ended."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Seq

from engine_adapter.engine.events import COMPUTED, Reason, Usage
from engine_adapter.engine.request import CacheUse
from engine_adapter.engine.sequence import Sequence
from kvstore.clock import Clock
from kvstore.served import OnServed, ServedPrompt

_log = logging.getLogger(__name__)


class Announcer:
    """Used by the engine's thread alone. What a subscriber raises is logged and costs nobody anything."""

    def __init__(self, subscribers: Seq[OnServed], clock: Clock, block_tokens: int) -> None:
        self._subscribers = tuple(subscribers)
        self._clock = clock
        self._block_tokens = block_tokens

    def ended(self, sequence: Sequence, reason: Reason, usage: Usage) -> None:
        """Tell of a request that made use of the cache; what goes on from another's prompt is not told."""
        is_told = sequence.cache is not CacheUse.OFF and sequence.times.admitted_s is not None
        if not self._subscribers or not is_told or sequence.is_fork:
            return
        served = self._fact(sequence, reason, usage)
        for tell in self._subscribers:
            try:
                tell(served)
            except Exception:  # noqa: BLE001 - whatever it is, it must not end other requests
                _log.exception("a subscriber failed")

    def _fact(self, sequence: Sequence, reason: Reason, usage: Usage) -> ServedPrompt:
        request, step = sequence.request, self._block_tokens
        waited_s = self._clock.monotonic_s() - sequence.times.submitted_s
        keys = sequence.keys[: sequence.num_computed // step]
        num_prompt = min(len(keys), sequence.num_prompt // step)
        return ServedPrompt(
            at_ms=self._clock.wall_ms() - int(waited_s * 1000),
            block_tokens=step,
            keys=tuple(keys[:num_prompt]),
            input_tokens=sequence.num_prompt,
            answer_keys=tuple(keys[num_prompt:]),
            output_tokens=sequence.num_generated,
            namespace=sequence.namespace.digest if sequence.keys else b"",
            tenant=sequence.namespace.tenant if sequence.keys else "",
            tokens_by_tier={tier: num for tier, num in usage.tokens_by_source.items() if tier != COMPUTED},
            stop=reason,
            reads=sequence.cache.reads,
            writes=sequence.cache.writes,
            ttl_s=request.ttl_s,
            session=request.session,
            end_session=request.end_session,
            expected_pause_s=request.expected_pause_s,
        )
