"""Whole answers, put together from the events of a request."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from engine_adapter.engine.events import Completion, Delta, Event, Finished, PromptLogprobs, Usage


def answers_of(events: Iterable[Event]) -> list[Completion]:
    """Return the answers that all events of a request make up, in the order of their index."""
    deltas: defaultdict[int, list[Delta]] = defaultdict(list)
    ends: dict[int, Finished] = {}
    prompt_logprobs = None
    for event in events:
        if isinstance(event, Finished):
            ends[event.index] = event
            continue
        deltas[event.index].append(event)
        if event.prompt_logprobs is not None:
            prompt_logprobs = event.prompt_logprobs
    return [_answer(deltas[index], ends[index], prompt_logprobs) for index in sorted(ends)]


def usage_of(usages: Sequence[Usage]) -> Usage:
    """Return what a request has cost, from what each of its answers has: the prompt counts once."""
    return replace(usages[0], completion_tokens=sum(usage.completion_tokens for usage in usages))


def likeliest(answers: Sequence[Completion], num: int) -> list[Completion]:
    """Return the ``num`` answers whose tokens are the likeliest in the mean, the best first.

    All must have been asked for ``logprobs``; an answer without a token comes last.
    """
    return sorted(answers, key=_mean_logprob, reverse=True)[:num]


def _answer(deltas: Sequence[Delta], end: Finished, prompt_logprobs: PromptLogprobs | None) -> Completion:
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        reason=end.reason,
        usage=end.usage,
        error=end.error,
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        prompt_logprobs=prompt_logprobs,
    )


def _mean_logprob(answer: Completion) -> float:
    logprobs = [one.logprob for one in answer.logprobs]
    return fmean(logprobs) if logprobs else -math.inf
