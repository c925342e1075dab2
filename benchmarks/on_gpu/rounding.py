"""What "equal" means in 16 bits, where even runs without any cache differ among themselves.

The clean run's tokens are fed. Another likeliest token passes only where the clean run's two likeliest are
closer than twice the largest difference of logits that runs without a cache show, in other chunks and other
batches. Compared are logarithms of probabilities, which differ from logits by a constant, of the likeliest
tokens: no others come to be chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.on_gpu.served import Served, greedy
from engine_adapter.engine.events import Completion, TokenLogprobs
from engine_adapter.engine.request import CacheUse, Request
from policies.planning import ReloadPolicy

_NUM_TOP = 20
_EVERY = 4


@dataclass(frozen=True, slots=True)
class CleanRun:
    """A prompt and what it is answered without any cache, alone."""

    prompt: Sequence[int]
    told: tuple[TokenLogprobs, ...]

    @classmethod
    def of(cls, served: Served, prompt: Sequence[int], num_tokens: int) -> CleanRun:
        """Run ``prompt``."""
        answer = served.answer(greedy(prompt, num_tokens, CacheUse.OFF, _NUM_TOP))
        return cls(prompt, answer.logprobs)

    @property
    def token_ids(self) -> list[int]:
        """The answer."""
        return [one.token for one in self.told]

    def fed(self, cache: CacheUse) -> list[Request]:
        """Return a request for each next token, to which all clean ones before it are fed."""
        ids = self.token_ids
        return [greedy([*self.prompt, *ids[:num]], 1, cache, _NUM_TOP) for num in range(len(ids))]

    def noise(self, served: Served) -> float:
        """Return the largest difference that runs without a cache show: in other chunks, in other batches."""
        requests = self.fed(CacheUse.OFF)
        together = _told(served.answers_together(requests))
        alone = _told(served.answer(request) for request in requests[::_EVERY])
        pairs = [*zip(self.told, together, strict=True), *zip(self.told[::_EVERY], alone, strict=True)]
        return max(difference(clean, other) for clean, other in pairs)

    def replayed(
        self, served: Served, policy: ReloadPolicy | None = None, cache: CacheUse = CacheUse.ON
    ) -> list[Completion]:
        """Return the answers to all that is fed; with ``ON`` only the first has to load the prompt."""
        return [served.answer(request, policy) for request in self.fed(cache)]

    def num_wrong(self, answers: Iterable[Completion], noise: float) -> int:
        """Return how many next tokens are others, and not by rounding."""
        return sum(
            found.token != clean.token and margin(clean) >= 2 * noise
            for clean, found in zip(self.told, _told(answers), strict=True)
        )


def difference(ours: TokenLogprobs, theirs: TokenLogprobs) -> float:
    """Return the largest difference of tokens that are among the likeliest of both."""
    other = dict(theirs.top)
    return max((abs(logprob - other[token]) for token, logprob in ours.top if token in other), default=0.0)


def margin(told: TokenLogprobs) -> float:
    """Return by how much the likeliest token is ahead of the next."""
    (_, first), (_, second), *_ = told.top
    return first - second


def _told(answers: Iterable[Completion]) -> list[TokenLogprobs]:
    return [answer.logprobs[0] for answer in answers]
