"""From logits to the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from engine_adapter.engine.request import Sampling

# Below it the likeliest token wins in fp32 anyway.
_LEAST_TEMPERATURE = 1e-5


class Sampler:
    """Chooses one sequence's tokens; draws come from its own generator, whatever the batch."""

    def __init__(self, sampling: Sampling) -> None:
        self.is_greedy = sampling.temperature < _LEAST_TEMPERATURE
        self._sampling = sampling
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed)

    def draw(self, logits: torch.Tensor) -> int:
        """Draw from one row of fp32 logits ``[vocab]`` on the CPU."""
        probabilities, tokens = _candidates(logits, self._sampling)
        return int(tokens[torch.multinomial(probabilities, 1, generator=self._generator)])


def choose_tokens(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int | None]:
    """Return each sampler's next token from its row of fp32 ``logits`` ``[rows, vocab]``.

    ``None`` stands for a row that is not a number: there is nothing to choose from.
    """
    best, tokens = (values.tolist() for values in logits.max(dim=-1))
    chosen: list[int | None] = [
        token if math.isfinite(top) else None for top, token in zip(best, tokens, strict=True)
    ]
    drawn = [row for row, sampler in enumerate(samplers) if not sampler.is_greedy and chosen[row] is not None]
    if drawn:
        for row, row_logits in zip(drawn, logits[drawn].cpu(), strict=True):
            chosen[row] = samplers[row].draw(row_logits)
    return chosen


def _candidates(logits: torch.Tensor, sampling: Sampling) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the probabilities (not normalised) and ids of the tokens that may be drawn, likeliest first.

    Temperature comes first, then the ``top_k`` likeliest, then the fewest of those whose
    probabilities, normalised among them, reach ``top_p``.
    """
    num_kept = min(sampling.top_k or len(logits), len(logits))
    if num_kept < len(logits):
        logits, tokens = logits.topk(num_kept)
    else:
        logits, tokens = logits.sort(descending=True, stable=True)
    probabilities = ((logits - logits[0]) / sampling.temperature).softmax(dim=-1)
    if sampling.top_p < 1:
        before = probabilities.cumsum(dim=-1) - probabilities
        probabilities = probabilities.masked_fill(before >= sampling.top_p, 0)
    return probabilities, tokens
