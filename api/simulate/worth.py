"""What hits are worth by given costs: the time to the first token, and how long the device computes."""

from __future__ import annotations

from dataclasses import dataclass

from policies.cost_model import ComputeCost, LoadCost

_FREE = LoadCost(0.0, float("inf"))


@dataclass(frozen=True, slots=True)
class Worth:
    """What a replay is worth in seconds: the mean TTFT, and the device's time that was saved."""

    mean_ttft_s: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class Prices:
    """What computing costs, and loading ``token_bytes`` a token from the tier that is simulated.

    Without ``load`` what is hit costs nothing. Requests are taken for alone.
    """

    compute: ComputeCost
    chunk_tokens: int
    load: LoadCost | None = None
    token_bytes: float = 0.0

    def computed_s(self, num_tokens: int) -> float:
        """Return how long it takes to compute a whole prompt."""
        return self.compute.prefill_s(0, num_tokens, self.chunk_tokens)

    def served(self, hit_tokens: int, num_tokens: int, block_tokens: int) -> tuple[float, float]:
        """Return (TTFT, seconds of computing) of a prompt whose first ``hit_tokens`` are in the tier.

        The head is computed while the tail of the hits is loaded, up to the block at which both end together
        the soonest, or one of them alone where that is faster. The last token is always computed.
        """
        hit_tokens = min(hit_tokens, num_tokens - 1)
        computed_s = self.computed_s(num_tokens)
        if hit_tokens <= 0:
            return computed_s, computed_s
        split = self._split(hit_tokens, block_tokens)
        ways = [
            self._both(head, hit_tokens, num_tokens) for head in (0, split - block_tokens, split) if head >= 0
        ]
        return min(*ways, (computed_s, computed_s))

    def _split(self, hit_tokens: int, block_tokens: int) -> int:
        """Return the first split at which computing the head takes no less than loading the rest."""
        low, high = 0, -(-hit_tokens // block_tokens)
        while low < high:
            middle = (low + high) // 2
            head = min(middle * block_tokens, hit_tokens)
            if self._head_s(head, hit_tokens) < self._load_s(hit_tokens - head):
                low = middle + 1
            else:
                high = middle
        return min(low * block_tokens, hit_tokens)

    def _both(self, head: int, hit_tokens: int, num_tokens: int) -> tuple[float, float]:
        head_s = self._head_s(head, hit_tokens)
        rest_s = self.compute.prefill_s(hit_tokens, num_tokens, self.chunk_tokens)
        return max(head_s, self._load_s(hit_tokens - head)) + rest_s, head_s + rest_s

    def _head_s(self, head: int, hit_tokens: int) -> float:
        """Return how long computing the head takes while what follows it is loaded."""
        head_s = self.compute.prefill_s(0, head, self.chunk_tokens)
        load_s = self._load_s(hit_tokens - head)
        if not load_s:
            return head_s
        return self.compute.beside_loads_s(head_s, (hit_tokens - head) * self.token_bytes, load_s)

    def _load_s(self, num_tokens: int) -> float:
        return (self.load or _FREE).load_s(num_tokens * self.token_bytes)


class Account:
    """Adds up what requests are worth, one after the other."""

    def __init__(self, prices: Prices, block_tokens: int) -> None:
        self._prices = prices
        self._block_tokens = block_tokens
        self._num = 0
        self._ttft_s = self._saved_s = 0.0

    def add(self, hit_tokens: int, num_tokens: int) -> None:
        """Take in a request."""
        ttft_s, compute_s = self._prices.served(hit_tokens, num_tokens, self._block_tokens)
        self._num += 1
        self._ttft_s += ttft_s
        self._saved_s += self._prices.computed_s(num_tokens) - compute_s

    def worth(self) -> Worth:
        """Return what all of them are worth."""
        return Worth(self._ttft_s / max(1, self._num), self._saved_s)
