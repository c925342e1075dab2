"""Where to split a prompt: computing goes forward from its head while its tail is loaded.

::

    block     0   1   2   3 | 4   5   6   7 | rest
    computing ══════════════>               ═════>   the rest waits for both
    loading                 <═══════════════
                            split

A token's keys and values depend on the tokens before it alone and late tokens cost more to compute, so
for one line and one device no other assignment is faster (Jin et al., "Compute or Load KV Cache? Why
Not Both?", 2024). Several lines load at the same time; a tier may be left out altogether.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, combinations

from policies.planning import READY, PlanRequest, Prediction

_GRID = 32


@dataclass(frozen=True, slots=True)
class Split:
    """Blocks before ``first_loaded`` are computed; those from it on are loaded where ``sources`` have them.

    Times in seconds, from the moment of planning: to the first token, of the device, and of the lines.
    ``cost_s`` is the first with what others lose added.
    """

    first_loaded: int
    sources: frozenset[str]
    ttft_s: float
    compute_s: float
    load_s: float
    cost_s: float


class Splits:
    """All ways to split the prompt of one request; pure, made for one decision.

    ``block_s`` is what each block adds to steps that are made anyway, ``trimmed`` how many tokens of a
    block are computed already; ``rest`` are the tokens behind the last whole block, and what they add.
    """

    def __init__(self, request: PlanRequest) -> None:
        self.request = request
        self._num_blocks = len(request.tiers)
        self.sources = tuple(
            sorted({tier for tier in request.tiers if tier is not None and tier in request.loads})
        )
        step, cost = request.block_tokens, request.compute
        first_s = cost.marginal_s(0, step)
        rise_s = cost.marginal_s(step, 2 * step) - first_s
        self.block_s = [first_s + rise_s * index for index in range(self._num_blocks)]
        rest_from = max(self._num_blocks * step, request.position)
        self.rest = (
            max(0, request.prompt_tokens - rest_from),
            cost.marginal_s(rest_from, request.prompt_tokens),
        )
        self.trimmed = self._trim_started_block()
        self._made: dict[frozenset[str], _Ways] = {}

    def all_computed(self) -> Split:
        """Return the split that loads nothing."""
        return self._ways(frozenset()).at(self._num_blocks)

    def all_loaded(self) -> Split:
        """Return the split that computes only what no tier has."""
        return self._ways(frozenset(self.sources)).first()

    def best(self) -> Split:
        """Return the split with the least cost; computing everything wins a tie."""
        best = self.all_computed()
        for sources in _subsets(self.sources):
            best = min(best, self._ways(sources).best(), key=lambda split: split.cost_s)
        return best

    def at(self, first_loaded: int) -> Split:
        """Return the split at a block, with every tier in use."""
        return self._ways(frozenset(self.sources)).at(first_loaded)

    def prediction(self, split: Split) -> Prediction:
        """Return what ``split`` is expected to take, beside the two alternatives to any."""
        return Prediction(
            ttft_s=split.ttft_s,
            compute_s=split.compute_s,
            load_s=split.load_s,
            if_computed_s=self.all_computed().ttft_s,
            if_loaded_s=self.all_loaded().ttft_s,
        )

    def _ways(self, sources: frozenset[str]) -> _Ways:
        """Return the splits that load from ``sources`` alone; their sums are made once."""
        if sources not in self._made:
            self._made[sources] = _Ways(self, sources)
        return self._made[sources]

    def _trim_started_block(self) -> dict[int, int]:
        """Leave of the block in which computing stands what it has not computed yet."""
        index, offset = divmod(self.request.position, self.request.block_tokens)
        if not offset or index >= self._num_blocks:
            return {}
        end = (index + 1) * self.request.block_tokens
        self.block_s[index] = self.request.compute.marginal_s(self.request.position, end)
        return {index: offset}


class _Ways:
    """The splits that load from ``sources`` alone: prefix sums over the blocks of what each way costs."""

    def __init__(self, splits: Splits, sources: frozenset[str]) -> None:
        request = self._request = splits.request
        self._sources = sources
        self._rest_tokens, self._rest_s = splits.rest
        tiers, block_s = request.tiers, splits.block_s
        is_loadable = [tier in sources for tier in tiers]
        is_hole = [tier != READY and not loadable for tier, loadable in zip(tiers, is_loadable, strict=True)]
        tokens = [request.block_tokens - splits.trimmed.get(index, 0) for index in range(len(tiers))]
        self._loadable_s = _sums(block_s, is_loadable)
        self._hole_s = _sums(block_s, is_hole)
        self._loadable_tokens = _sums(tokens, is_loadable)
        self._hole_tokens = _sums(tokens, is_hole)
        self._candidates = [index for index, loadable in enumerate(is_loadable) if loadable]
        flying = request.in_flight
        all_bytes = [request.block_bytes] * len(tiers)
        new_bytes = [0 if index in flying else request.block_bytes for index in range(len(tiers))]
        is_from = {source: [tier == source for tier in tiers] for source in sources}
        self._loaded_bytes = {source: _sums(all_bytes, is_from[source]) for source in sources}
        self._new_bytes = {source: _sums(new_bytes, is_from[source]) for source in sources}
        self._last_in_flight = {
            source: max((index for index in flying if tiers[index] == source), default=-1)
            for source in sources
        }

    def first(self) -> Split:
        """Return the one that loads the most; holes before it are computed meanwhile."""
        return self.at(next(iter(self._candidates), len(self._request.tiers)))

    def best(self) -> Split:
        """Return the best of these, by a grid and then by the blocks around its best point."""
        num = len(self._candidates)
        stride = max(1, num // _GRID)
        coarse = min(range(0, num, stride), key=lambda at: self.at(self._candidates[at]).cost_s)
        around = range(max(0, coarse - stride + 1), min(num, coarse + stride))
        return min((self.at(self._candidates[at]) for at in around), key=lambda split: split.cost_s)

    def at(self, first_loaded: int) -> Split:
        """Return what it costs to compute up to a block and load from it on."""
        request, cost = self._request, self._request.compute
        head_tokens = self._loadable_tokens[first_loaded] + self._hole_tokens[first_loaded]
        head_s = self._loadable_s[first_loaded] + self._hole_s[first_loaded]
        tail_tokens = self._hole_tokens[-1] - self._hole_tokens[first_loaded] + self._rest_tokens
        tail_s = self._hole_s[-1] - self._hole_s[first_loaded] + self._rest_s
        num_loaded, line_s, loaded_s = self._lines(first_loaded)
        if not num_loaded:
            compute_s = (
                head_s + tail_s + cost.step_s * _steps(head_tokens + tail_tokens, request.chunk_tokens)
            )
            ttft_s = request.compute_queue_s + compute_s
        else:
            head_s += cost.step_s * _steps(head_tokens, request.chunk_tokens)
            head_s = self._beside_loads_s(head_s, first_loaded, loaded_s)
            if not tail_tokens:  # the last token, for its logits
                tail_s += cost.token_s
            tail_s += cost.step_s * max(1, _steps(tail_tokens, request.chunk_tokens))
            compute_s = head_s + tail_s
            ttft_s = max(request.compute_queue_s + head_s, loaded_s) + tail_s
        cost_s = ttft_s + request.device_price * compute_s
        cost_s += sum(request.line_prices.get(source, 0.0) * busy_s for source, busy_s in line_s.items())
        return Split(first_loaded, self._sources, ttft_s, compute_s, loaded_s, cost_s)

    def _beside_loads_s(self, head_s: float, first_loaded: int, loaded_s: float) -> float:
        """Return how long the head takes beside what is loaded after those who go first are computed."""
        left_s = loaded_s - self._request.compute_queue_s
        if left_s <= 0:
            return head_s
        nbytes = sum(sums[-1] - sums[first_loaded] for sums in self._loaded_bytes.values())
        return self._request.compute.beside_loads_s(head_s, nbytes * left_s / loaded_s, left_s)

    def _lines(self, first_loaded: int) -> tuple[int, dict[str, float], float]:
        """Return how many blocks are loaded, how long each line is kept busy, and when all have arrived."""
        num_loaded, line_s, loaded_s = 0, dict[str, float](), 0.0
        for source in self._sources:
            load, sums = self._request.loads[source], self._new_bytes[source]
            nbytes = sums[-1] - sums[first_loaded]
            is_awaited = self._last_in_flight[source] >= first_loaded
            if not nbytes and not is_awaited:
                continue
            num_loaded += 1
            line_s[source] = nbytes / load.bytes_per_s
            loaded_s = max(loaded_s, load.load_s(nbytes))
        return num_loaded, line_s, loaded_s


def _sums(values: Sequence[float], selected: Sequence[bool]) -> list[float]:
    """Return the sums over the first 0, 1, 2 ... of the selected values."""
    return list(
        accumulate(
            chain((0.0,), (value if is_in else 0.0 for value, is_in in zip(values, selected, strict=True)))
        )
    )


def _steps(num_tokens: float, chunk_tokens: int) -> int:
    return -(-int(num_tokens) // chunk_tokens)


def _subsets(sources: Sequence[str]) -> Iterator[frozenset[str]]:
    for size in range(len(sources), 0, -1):
        yield from map(frozenset, combinations(sources, size))
