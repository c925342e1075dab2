"""How likely tokens were: logarithms of probabilities, from raw logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_adapter.engine.events import PromptLogprobs, TokenLogprobs


class PromptCollector:
    """Collects, chunk by chunk, how likely each token of a prompt was after those before it."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._found: list[TokenLogprobs | None] = [None]  # before the first there is nothing

    @property
    def found(self) -> PromptLogprobs:
        """What was collected, one for each token from the first on."""
        return tuple(self._found)

    def add(self, first: int, tokens: Sequence[int], logits: torch.Tensor) -> None:
        """Take in the prompt's ``tokens`` from position ``first`` on, each with the fp32 logits before it.

        A prompt that begins again replaces what it was before.
        """
        self._found[first:] = token_logprobs(logits[: len(tokens)], tokens, self._num_top)


def token_logprobs(logits: torch.Tensor, tokens: Sequence[int], num_top: int) -> list[TokenLogprobs]:
    """Return how likely each token was by its row of fp32 ``logits`` ``[len(tokens), vocab]``.

    The probabilities are those of the model: before temperature, ``top_k`` and ``top_p``.
    """
    if not tokens:
        return []
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device).unsqueeze(1))
    norms = logits.logsumexp(dim=-1, keepdim=True)
    ranks = (logits > chosen).sum(dim=-1) + 1
    values, likeliest = logits.topk(min(num_top, logits.shape[-1]), dim=-1)
    return [
        TokenLogprobs(token, logprob, rank, tuple(zip(ids, logprobs, strict=True)))
        for token, logprob, rank, ids, logprobs in zip(
            tokens,
            (chosen - norms).squeeze(1).tolist(),
            ranks.tolist(),
            likeliest.tolist(),
            (values - norms).tolist(),
            strict=True,
        )
    ]
