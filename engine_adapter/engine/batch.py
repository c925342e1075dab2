"""One step's work: what the model computes for it, and what is chosen and told from its logits."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import accumulate

import torch

from engine_adapter.engine.constraints import held_to
from engine_adapter.engine.events import TokenLogprobs
from engine_adapter.engine.logprobs import token_logprobs
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.engine.sampling import choose_tokens
from engine_adapter.engine.scheduler import Work
from engine_adapter.engine.sequence import Sequence
from policies.cost_model import Work as StepWork
from policies.cost_model import attended_between


@dataclass(frozen=True, slots=True)
class Choice:
    """The next token of a sequence, ``None`` where its logits are not numbers."""

    sequence: Sequence
    token: int | None
    logprobs: TokenLogprobs | None


class Batch:
    """The works of one step, and their logits once it is computed."""

    def __init__(self, works: Seq[Work]) -> None:
        self.works = works
        self.choosing = [work.sequence for work in works if work.chooses]
        self._ends = list(accumulate(work.num_logits for work in works))
        self._logits = torch.empty(0)
        self._last = torch.empty(0)
        self._has_recorded = False

    def compute(self, runner: ModelRunner) -> list[Choice]:
        """Run the model, and choose the next token of each sequence that is complete, in order."""
        self._logits = runner.forward([_chunk(work) for work in self.works])
        self._has_recorded = runner.has_recorded
        last = [end - 1 for end, work in zip(self._ends, self.works, strict=True) if work.chooses]
        self._last = self._logits if len(last) == len(self._logits) else self._logits[last]
        self._collect_prompts()
        return _choose(self._last, self.choosing)

    def choose_more(self, first: Sequence, others: Seq[Sequence]) -> list[Choice]:
        """Choose the next token of ``others``, each for itself, after the prompt that ``first`` has."""
        row = self._last[self.choosing.index(first)]
        return _choose(row.expand(len(others), -1), others)

    def _collect_prompts(self) -> None:
        """Take note how likely the tokens of prompts were, for those that ask for it."""
        for work, end in zip(self.works, self._ends, strict=True):
            if (wanted := work.sequence.prompt_logprobs) is not None:
                tokens = work.sequence.tokens[work.start + 1 : work.end + 1]
                wanted.add(work.start + 1, tokens, self._logits[end - work.num_logits : end])

    @property
    def cost(self) -> StepWork:
        """The step in the terms that its cost depends on."""
        decodes = [work for work in self.works if work.is_decode]
        prefills = [work for work in self.works if not work.is_decode]
        return StepWork(
            tokens=sum(work.end - work.start for work in prefills),
            attended=sum(attended_between(work.start, work.end) for work in prefills),
            decodes=len(decodes),
            context=sum(work.end for work in decodes),
        )

    @property
    def is_typical(self) -> bool:
        """Whether it took as long as its cost says: logits of whole chunks take longer, so does recording."""
        return not self._has_recorded and all(work.num_logits <= 1 for work in self.works)


def _choose(logits: torch.Tensor, sequences: Seq[Sequence]) -> list[Choice]:
    """Choose the next token of each sequence from its row of fp32 logits ``[len(sequences), vocab]``."""
    fitting = held_to([sequence.matcher for sequence in sequences], logits)
    tokens = choose_tokens(fitting, [sequence.sampler for sequence in sequences])
    told = _likelihoods(logits, sequences, tokens)
    return [
        Choice(sequence, token, told.get(row))
        for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True))
    ]


def _likelihoods(
    logits: torch.Tensor, sequences: Seq[Sequence], tokens: Seq[int | None]
) -> dict[int, TokenLogprobs]:
    """Return by row how likely the chosen tokens were, for those that ask for it."""
    rows_by_num: dict[int, dict[int, int]] = {}
    for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
        num_top = sequence.request.sampling.logprobs
        if num_top is not None and token is not None:
            rows_by_num.setdefault(num_top, {})[row] = token
    told: dict[int, TokenLogprobs] = {}
    for num_top, chosen in rows_by_num.items():
        found = token_logprobs(logits[list(chosen)], list(chosen.values()), num_top)
        told.update(zip(chosen, found, strict=True))
    return told


def _chunk(work: Work) -> Chunk:
    sequence = work.sequence
    tokens = sequence.tokens[work.start : work.end]
    return Chunk(tokens, work.start, sequence.blocks, work.num_logits, sequence.request.lora)
