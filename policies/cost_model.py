"""What computing and loading cost, as numbers that were measured: pure functions of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """What one step of the engine computes, in the terms that its cost depends on.

    ``attended`` is the sum over the prefill tokens of how many tokens each attends to, ``context``
    the same over the decoding sequences.
    """

    tokens: int
    attended: float
    decodes: int = 0
    context: int = 0

    @classmethod
    def prefill(cls, start: int, end: int) -> Work:
        """Return the work of computing positions ``start`` to ``end`` of one prompt."""
        return cls(end - start, attended_between(start, end))


@dataclass(frozen=True, slots=True)
class ComputeCost:
    """Seconds of a step: so much for itself, each token, each attended pair, each decoding sequence.

    ``loaded_byte_s`` is what each byte takes from computing that is loaded beside it: both may need the
    same processor.
    """

    step_s: float
    token_s: float
    attended_s: float
    decode_s: float = 0.0
    context_s: float = 0.0
    loaded_byte_s: float = 0.0

    def of(self, work: Work) -> float:
        """Return the seconds that a step with ``work`` takes."""
        return (
            self.step_s
            + self.token_s * work.tokens
            + self.attended_s * work.attended
            + self.decode_s * work.decodes
            + self.context_s * work.context
        )

    def prefill_s(self, start: int, end: int, chunk_tokens: int) -> float:
        """Return the seconds to compute positions ``start`` to ``end`` in chunks of ``chunk_tokens``."""
        if end <= start:
            return 0.0
        num_steps = -(-(end - start) // chunk_tokens)
        return self.step_s * num_steps + self.marginal_s(start, end)

    def marginal_s(self, start: int, end: int) -> float:
        """Return what the positions ``start`` to ``end`` add to steps that are made anyway."""
        return self.token_s * (end - start) + self.attended_s * attended_between(start, end)

    def beside_loads_s(self, compute_s: float, nbytes: float, load_s: float) -> float:
        """Return how long ``compute_s`` of computing take while ``nbytes`` arrive evenly over ``load_s``."""
        lost_s = self.loaded_byte_s * nbytes
        if lost_s >= load_s:
            return compute_s + lost_s
        return min(compute_s + lost_s, compute_s / (1 - lost_s / load_s))

    def scaled(self, factor: float) -> ComputeCost:
        """Return the cost on a machine ``factor`` times as slow."""
        return ComputeCost(
            self.step_s * factor,
            self.token_s * factor,
            self.attended_s * factor,
            self.decode_s * factor,
            self.context_s * factor,
            self.loaded_byte_s * factor,
        )


@dataclass(frozen=True, slots=True)
class LoadCost:
    """What a tier's next loads cost: they wait ``queue_s``, then ``latency_s``, then come at a rate.

    ``bytes_per_s`` counts raw bytes as they arrive, decoded. ``queue_s`` is the time until the loads
    that were asked for before have arrived; while there are such, a new one's latency passes
    meanwhile, and ``latency_s`` is what is left of it.
    """

    latency_s: float
    bytes_per_s: float
    queue_s: float = 0.0

    def load_s(self, nbytes: float) -> float:
        """Return the seconds until ``nbytes`` more have arrived; what is queued alone for 0."""
        if nbytes <= 0:
            return self.queue_s
        return max(self.queue_s, self.latency_s) + nbytes / self.bytes_per_s


def attended_between(start: int, end: int) -> float:
    """Return how many (token, attended token) pairs positions ``start`` to ``end`` make up."""
    return (end - start) * (start + end + 1) / 2
