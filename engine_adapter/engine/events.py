"""What a caller hears of a request: its tokens as they come, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from engine_adapter.engine.request import Mode

COMPUTED = "computed"

Reason = Literal["stop", "length", "cancelled", "error"]
Chosen = Literal["load", "compute", "both"]


@dataclass(frozen=True, slots=True)
class Planned:
    """What was decided about loading and computing a prompt, and what came of it. Times in seconds.

    ``tokens_by_tier`` could have been loaded; ``chosen`` says whether that was planned for all of them,
    none or some. The predictions were made when the prompt was first planned for and say how long from
    then on the first token would take: as planned, if everything was computed, if all that can be was
    loaded. ``num_failed`` blocks were asked for and did not come. ``actual_s`` is what it took, ``None``
    before that. Unless ``is_served``, everything was computed, whatever the plan said.
    """

    policy: str
    mode: Mode
    is_served: bool
    chosen: Chosen
    reason: str
    tokens_by_tier: Mapping[str, int]
    predicted_s: float
    if_computed_s: float
    if_loaded_s: float
    num_plans: int
    num_failed: int = 0
    actual_s: float | None = None

    @property
    def expected_s(self) -> float:
        """What ``actual_s`` was predicted to be: as planned, or by computing everything."""
        return self.predicted_s if self.is_served else self.if_computed_s

    @property
    def saved_s(self) -> float:
        """What the cache saved against computing everything; negative: it cost that.

        Computing everything is predicted; in mode ``observe`` so is what loading would have taken. A hit
        that was computed to be compared says nothing.
        """
        if self.actual_s is None or not (self.is_served or self.mode is Mode.OBSERVE):
            return 0.0
        return self.if_computed_s - (self.predicted_s if self.mode is Mode.OBSERVE else self.actual_s)


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request cost. Times are in seconds; ``None`` where nothing was reached.

    ``tokens_by_source`` says where each prompt token's keys and values came from: ``computed``
    or the tier they were taken from. Its values add up to ``prompt_tokens`` once the whole prompt
    was processed, and to less when the request ended before. Of several answers the first one counts the
    prompt: where another goes on from its blocks, it has no sources of its own. ``queue_s`` is the time until
    admission, ``ttft_s`` until the first token, both from submission; ``itl_s`` is the mean time
    between tokens; ``load_s`` runs from the first load's start to the last one's arrival. ``planned``
    is there when a lower tier had blocks of the prompt.
    """

    prompt_tokens: int
    completion_tokens: int
    tokens_by_source: Mapping[str, int]
    queue_s: float | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    load_s: float = 0.0
    planned: Planned | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not computed."""
        return sum(self.tokens_by_source.values()) - self.tokens_by_source.get(COMPUTED, 0)

    @property
    def main_source(self) -> str | None:
        """Where most of the prompt came from; ``None``: another answer has counted it, or none has come."""
        sources = self.tokens_by_source
        best = max(sources, key=sources.__getitem__, default=None)
        return best if best is not None and sources[best] else None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely a token was: the natural logarithm of its probability, and its rank, 1 for the likeliest.

    ``top`` holds the likeliest tokens in its place, as many as were asked for, each with its logarithm. All
    are the model's own, before temperature, ``top_k`` and ``top_p``.
    """

    token: int
    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


PromptLogprobs = tuple[TokenLogprobs | None, ...]
"""One for each token of a prompt, ``None`` for the first."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One more token; ``text`` may be empty while a character or a stop string is incomplete.

    Text held back until the end comes in a last delta without tokens. ``since_previous_s`` is
    the time since the token before, ``None`` for the first token. ``logprobs`` is there
    when it was asked for, one for each token; ``prompt_logprobs`` likewise, in a delta without tokens
    that comes before all others of the first answer. ``index`` is the answer's, from 0.
    """

    text: str
    token_ids: tuple[int, ...]
    since_previous_s: float | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None
    index: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of each answer. ``error`` says what went wrong when ``reason`` is ``error``."""

    reason: Reason
    usage: Usage
    error: str | None = None
    index: int = 0


Event = Delta | Finished
OnEvent = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    token_ids: tuple[int, ...]
    reason: Reason
    usage: Usage
    error: str | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: PromptLogprobs | None = None
