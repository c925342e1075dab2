"""Whole answers, put together from the events of a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from engine_adapter.engine.request import Completion, Delta, Event, Finished, Usage


def answers_of(events: Iterable[Event]) -> list[Completion]:
    """Return the answers that all events of a request make up, in the order of their index."""
    deltas: defaultdict[int, list[Delta]] = defaultdict(list)
    ends: dict[int, Finished] = {}
    for event in events:
        if isinstance(event, Finished):
            ends[event.index] = event
        else:
            deltas[event.index].append(event)
    return [_answer(deltas[index], ends[index]) for index in sorted(ends)]


def usage_of(usages: Sequence[Usage]) -> Usage:
    """Return what a request has cost, from what each of its answers has: the prompt counts once."""
    return replace(usages[0], completion_tokens=sum(usage.completion_tokens for usage in usages))


def _answer(deltas: Sequence[Delta], end: Finished) -> Completion:
    prompts = (delta.prompt_logprobs for delta in deltas if delta.prompt_logprobs is not None)
    return Completion(
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        reason=end.reason,
        usage=end.usage,
        error=end.error,
        logprobs=tuple(one for delta in deltas for one in delta.logprobs),
        prompt_logprobs=next(prompts, None),
    )
