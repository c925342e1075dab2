"""A tier that serves the requests of a trace."""

from __future__ import annotations

from collections.abc import Sequence

from api.simulate.trace import Trace
from kvstore.hints import Hint
from kvstore.seams import EvictionPolicy
from policies.simulated_tier import SimulatedTier


class TracedTier:
    """A tier without its bytes, to which a trace's requests come by their number.

    ``ttl_s`` is the soft TTL that each request gives its blocks; ``None``: what the trace says.
    ``hints`` are told after each request; ``None``: nothing is told.
    """

    def __init__(
        self,
        trace: Trace,
        policy: EvictionPolicy,
        capacity_blocks: int,
        ttl_s: float | None = None,
        hints: Sequence[Hint | None] | None = None,
    ) -> None:
        has_ends = ttl_s is not None or any(request.ttl_s is not None for request in trace.requests)
        self._tier = SimulatedTier(policy, capacity_blocks, has_ends=has_ends)
        self._trace = trace
        self._ttl_s = ttl_s
        self._hints = hints

    def __len__(self) -> int:
        return len(self._tier)

    def serve(self, number: int) -> int:
        """Serve a request; returns how many of its blocks were hit, from the first."""
        request, key_of = self._trace.requests[number], self._trace.keys
        keys = [key_of[block] for block in request.blocks]
        answer = [key_of[block] for block in request.answer]
        ttl_s = request.ttl_s if self._ttl_s is None else self._ttl_s
        hint = None if self._hints is None else self._hints[number]
        return self._tier.serve(keys, request.at_ms, ttl_s, answer, hint)

    def resident(self) -> set[bytes]:
        """Return the keys of the blocks that are there, those whose time is over included."""
        return self._tier.resident()

    def check(self) -> None:
        """Raise ``InvariantError`` when the books contradict each other."""
        self._tier.check()
