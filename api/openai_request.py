"""From an OpenAI-shaped body to a request of the engine, and to the answers that are sent of those made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from api.openai_fields import refuse_unserved, refuse_unserved_in_message
from api.openai_schema import ChatFields, CompletionFields, GenerationFields
from api.served import Served
from engine_adapter.engine.answers import likeliest
from engine_adapter.engine.constraints import Constraint
from engine_adapter.engine.events import Completion
from engine_adapter.engine.request import CacheUse, Mode, Request, Sampling
from kvstore.errors import RequestError

DEFAULT_COMPLETION_TOKENS = 16
# Where a field of the engine's stands in the body.
_BODY_FIELDS = {
    "salt": "cache_salt",
    "ttl_s": "kv.ttl_s",
    "session": "kv.session",
    "expected_pause_s": "kv.expected_pause_s",
}


def check_fields(fields: GenerationFields, served: Served) -> None:
    """Refuse another model, and fields that are not served. Raises ``RequestError``."""
    served.require(fields.model)
    refuse_unserved(fields.model_extra or {})
    if isinstance(fields, ChatFields):
        for index, message in enumerate(fields.messages):
            refuse_unserved_in_message(index, message.model_extra or {})
    if _num_sent(fields) < 1:
        raise RequestError("n", "must be 1 or more")
    if _num_made(fields) < _num_sent(fields):
        raise RequestError("best_of", "must be at least n")
    for name in _unstreamable(fields) if fields.stream else ():
        raise RequestError(name, "cannot be streamed; leave out one of the two")


@contextmanager
def in_words_of_the_body(fields: GenerationFields) -> Iterator[None]:
    """Let a ``RequestError`` name the body's field instead of the engine's."""
    try:
        yield
    except RequestError as error:
        param = _body_field(fields, error.param)
        if param == error.param:
            raise
        raise RequestError(param, error.reason) from None


def engine_request(
    fields: GenerationFields,
    prompt_ids: Sequence[int],
    lora: str | None,
    constraint: Constraint | None,
    tenant: str,
) -> Request:
    """Return the engine's request. Raises ``RequestError``."""
    return Request(
        prompt_ids=prompt_ids,
        sampling=_sampling(fields),
        cache=CacheUse(fields.kv.cache),
        mode=Mode(fields.kv.mode) if fields.kv.mode else None,
        ttl_s=fields.kv.ttl_s,
        salt=fields.cache_salt or "",
        tenant=tenant,
        session=fields.kv.session,
        end_session=fields.kv.end_session,
        expected_pause_s=fields.kv.expected_pause_s,
        lora=lora,
        priority=fields.priority or 0,
        constraint=constraint,
    )


def sent_answers(fields: GenerationFields, answers: Sequence[Completion]) -> Sequence[Completion]:
    """Return those of all answers that the client asked for: of ``best_of`` the ``n`` likeliest."""
    if _num_made(fields) == _num_sent(fields):
        return answers
    best = likeliest(answers, _num_sent(fields))
    return best if _logprobs(fields) is not None else [replace(answer, logprobs=()) for answer in best]


def _sampling(fields: GenerationFields) -> Sampling:
    stop = [fields.stop] if isinstance(fields.stop, str) else fields.stop or []
    logprobs = _logprobs(fields)
    if logprobs is None and _num_made(fields) > _num_sent(fields):
        logprobs = 0  # to tell which are the likeliest
    return Sampling(
        temperature=1.0 if fields.temperature is None else fields.temperature,
        top_p=1.0 if fields.top_p is None else fields.top_p,
        top_k=0 if fields.top_k in {None, -1} else fields.top_k or 0,
        seed=fields.seed,
        stop=tuple(stop),
        max_tokens=_max_tokens(fields),
        ignore_eos=fields.ignore_eos,
        logprobs=logprobs,
        prompt_logprobs=fields.prompt_logprobs,
        n=_num_made(fields),
    )


def _max_tokens(fields: GenerationFields) -> int | None:
    if isinstance(fields, ChatFields) and fields.max_completion_tokens is not None:
        return fields.max_completion_tokens
    if isinstance(fields, CompletionFields) and fields.max_tokens is None:
        return DEFAULT_COMPLETION_TOKENS
    return fields.max_tokens


def _logprobs(fields: GenerationFields) -> int | None:
    """Return how many of the likeliest tokens are told; ``None``: not even the chosen one."""
    if isinstance(fields, CompletionFields):
        return fields.logprobs
    if not isinstance(fields, ChatFields):
        return None
    if fields.logprobs:
        return fields.top_logprobs or 0
    if fields.top_logprobs:
        raise RequestError("top_logprobs", "needs logprobs to be true")
    return None


def _num_sent(fields: GenerationFields) -> int:
    return 1 if fields.n is None else fields.n


def _num_made(fields: GenerationFields) -> int:
    best_of = fields.best_of if isinstance(fields, CompletionFields) else None
    return _num_sent(fields) if best_of is None else best_of


def _unstreamable(fields: GenerationFields) -> list[str]:
    """Return the fields whose effect is known only at the end."""
    is_ranked = _num_made(fields) != _num_sent(fields)
    is_told = fields.prompt_logprobs is not None
    return [name for name, is_used in (("best_of", is_ranked), ("prompt_logprobs", is_told)) if is_used]


def _body_field(fields: GenerationFields, param: str) -> str:
    if param == "logprobs" and isinstance(fields, ChatFields):
        return "top_logprobs"
    if param == "n" and _num_made(fields) != _num_sent(fields):
        return "best_of"
    return _BODY_FIELDS.get(param, param)
