"""What other eviction policies would have hit in a tier, estimated from a sample of its keys.

Blocks are sampled by key, so that all uses of one are seen or none (SHARDS: Waldspurger et al., FAST '15).
The parent of a sampled block is its nearest sampled ancestor, and a tier holds as many blocks of the sample
as is their share of all.

What a prompt hits is a run from its first block. Behind its end, the next block that is sampled is missed. It
is ``1 / rate - 1`` blocks away in the mean, so the end is estimated from there::

    block     0   1   2   3   4   5   6   7   8   9
    sampled       x       x               x           8 is missed
    hit       ════════════════════════>

Blocks that everybody hits decide nothing so, and whether the few of them are sampled does not matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from xxhash import xxh32_intdigest

from kvstore.hints import hint_of
from kvstore.seams import EvictionPolicy
from kvstore.served import ServedPrompt
from policies.simulated_tier import SimulatedTier

MakePolicy = Callable[[], EvictionPolicy]

_ALL = 1 << 32
# Policies may sample by key themselves; with a hash of its own, theirs is not this sample again.
_SEED = 0x5AD0
_WANTED_SAMPLED = 4096
_LEAST_SAMPLED = 64
_HALF_LIFE_MS = 3_600_000.0


class Mark(NamedTuple):
    """A key and its number from 0 to 2**32: it is sampled where the rate is a larger share of that."""

    number: int
    key: bytes


def marks_of(keys: Sequence[bytes]) -> list[Mark]:
    """Return the numbers of keys, in their order."""
    return [Mark(xxh32_intdigest(key, _SEED), key) for key in keys]


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """What policies hit in one tier, of the last prompts' tokens: older ones weigh half as much each hour.

    ``hit_ratios`` is by policy, ``live`` among them; at ``rate`` so much of the keys is sampled.
    """

    live: str
    hit_ratios: Mapping[str, float]
    rate: float

    @property
    def regret(self) -> float:
        """How much more the best of them would have hit than the live one."""
        return max(self.hit_ratios.values()) - self.hit_ratios[self.live]


class ShadowTier:
    """One tier under several policies, over a sample of its keys. Pure: times come with what was served."""

    def __init__(
        self,
        makers: Mapping[str, MakePolicy],
        live: str,
        capacity_blocks: int,
        ttl_s: float | None = None,
        rate: float | None = None,
    ) -> None:
        """``makers`` make the policies, ``live`` among them; ``ttl_s`` is for requests that name none.

        Without ``rate``, it is one at which some thousand blocks stand for the tier.
        """
        self._makers = dict(makers)
        self._live = live
        self._capacity_blocks = capacity_blocks
        self._ttl_s = ttl_s
        self.wanted_rate = min(1.0, _WANTED_SAMPLED / capacity_blocks) if rate is None else rate
        self.rate = self.wanted_rate
        self._at_ms = 0.0
        self._num_tokens = 0.0
        self._num_hit = dict.fromkeys(self._makers, 0.0)
        self._tiers = {
            name: SimulatedTier(make(), self._num_sampled, has_ends=True)
            for name, make in self._makers.items()
        }

    @property
    def can_halve(self) -> bool:
        """Whether half the sample would still say anything."""
        return self._capacity_blocks * self.rate >= 2 * _LEAST_SAMPLED

    def serve(self, served: ServedPrompt, marks: Sequence[Mark], answer: Sequence[Mark]) -> Iterator[None]:
        """Serve a prompt under every policy, one with each step. ``marks`` are those of its keys."""
        places = [place for place, mark in enumerate(marks) if mark.number < self._end]
        keys = [marks[place].key for place in places]
        answer_keys = [mark.key for mark in answer if mark.number < self._end]
        ttl_s = self._ttl_s if served.ttl_s is None else served.ttl_s
        self._at_ms = max(self._at_ms, self._fade(served.at_ms))
        self._num_tokens += served.input_tokens
        hint = hint_of(served.stop, ends_session=served.end_session, pause_s=served.expected_pause_s)
        for name, tier in self._tiers.items():
            num_hit = tier.serve(keys, self._at_ms, ttl_s, answer_keys, hint)
            is_all = num_hit == len(keys)
            run = len(marks) if is_all else places[num_hit] - (1 / self.rate - 1)
            self._num_hit[name] += run * served.block_tokens
            yield

    def change_rate(self, rate: float) -> Iterator[None]:
        """Go on with another sample, one policy with each step, before anything else is served.

        What is resident stays, as far as it is sampled.
        """
        self.rate = rate
        for name, tier in self._tiers.items():
            self._tiers[name] = tier.thinned(self._makers[name](), self._num_sampled, self._is_sampled)
            yield

    def report(self) -> ShadowReport | None:
        """Return what is estimated; ``None``: nothing was served yet."""
        if not self._num_tokens:
            return None
        ratios = {
            name: min(1.0, max(0.0, num_hit / self._num_tokens)) for name, num_hit in self._num_hit.items()
        }
        return ShadowReport(self._live, ratios, self.rate)

    def check(self) -> None:
        """Raise ``InvariantError`` when a tier's books contradict each other."""
        for tier in self._tiers.values():
            tier.check()

    @property
    def _num_sampled(self) -> int:
        return max(1, round(self._capacity_blocks * self.rate))

    @property
    def _end(self) -> float:
        return self.rate * _ALL

    def _is_sampled(self, key: bytes) -> bool:
        return xxh32_intdigest(key, _SEED) < self._end

    def _fade(self, at_ms: float) -> float:
        """Let what was counted before weigh less; returns the time."""
        if self._num_tokens and at_ms > self._at_ms:
            weight = 0.5 ** ((at_ms - self._at_ms) / _HALF_LIFE_MS)
            self._num_tokens *= weight
            for name in self._num_hit:
                self._num_hit[name] *= weight
        return at_ms
