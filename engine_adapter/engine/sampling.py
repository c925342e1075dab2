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

    def __init__(self, sampling: Sampling, index: int = 0) -> None:
        """``index`` is that of the answer, among those to the same prompt."""
        self.is_greedy = sampling.temperature < _LEAST_TEMPERATURE
        self._sampling = sampling
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed + index)

    def draw(self, logits: torch.Tensor) -> int:
        """Draw from one row of fp32 logits ``[vocab]`` on the CPU.

        One number decides, on the tokens' probabilities laid end to end in the order of their ids:
        the rounding of logits, which depends on the batch, then hardly ever decides.
        """
        ends = _probabilities(logits, self._sampling).cumsum(dim=-1, dtype=torch.float64)
        point = ends[-1] * torch.rand(1, generator=self._generator, dtype=torch.float64)
        return min(int(torch.searchsorted(ends, point, right=True)), len(ends) - 1)


def choose_tokens(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int | None]:
    """Return each sampler's next token from its row of fp32 ``logits`` ``[rows, vocab]``.

    ``None`` stands for a row that is not a number: there is nothing to choose from.
    """
    best, tokens = _likeliest(logits)
    chosen: list[int | None] = [
        token if math.isfinite(top) else None for top, token in zip(best, tokens, strict=True)
    ]
    drawn = [row for row, sampler in enumerate(samplers) if not sampler.is_greedy and chosen[row] is not None]
    if drawn:
        for row, row_logits in zip(drawn, logits[drawn].cpu(), strict=True):
            chosen[row] = samplers[row].draw(row_logits)
    return chosen


def _likeliest(logits: torch.Tensor) -> tuple[list[float], list[int]]:
    """Return the largest logit of each row and its token; one that is no number is larger than all."""
    if logits.is_cuda:
        best, tokens = logits.max(dim=-1)
        return best.tolist(), tokens.tolist()
    # torch's own search for a place takes twenty times as long on a CPU.
    places = torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.gather(1, places[:, None])[:, 0].tolist(), places.tolist()


def _probabilities(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Return each token's probability, 0 for those that may not be drawn; the sum may be below 1.

    Temperature comes first, then the ``top_k`` likeliest, then the fewest of those whose
    probabilities, normalised among them, reach ``top_p``.
    """
    if 0 < sampling.top_k < len(logits):
        kept, tokens = logits.topk(sampling.top_k)
        logits = torch.full_like(logits, -math.inf).scatter_(0, tokens, kept)
    probabilities = ((logits - logits.max()) / sampling.temperature).softmax(dim=-1)
    if sampling.top_p < 1:
        ordered, tokens = probabilities.sort(descending=True, stable=True)
        is_beyond = ordered.cumsum(dim=-1) - ordered >= sampling.top_p
        probabilities[tokens[is_beyond]] = 0
    return probabilities
