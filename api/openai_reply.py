"""Answers as the OpenAI API shapes them, whole and in chunks, with this project's ``kv`` beside them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from api.kv_reply import plan_body
from api.openai_logprobs import (
    TextOffsets,
    TokenTexts,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs_body,
)
from engine_adapter.engine.events import Completion, Delta, Finished, Reason, TokenLogprobs, Usage


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return ``usage`` as the OpenAI API does."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


def kv_body(usage: Usage) -> dict[str, Any]:
    """Return where the prompt's tokens came from, what that took in seconds, and what was planned."""
    return {
        "tokens_by_source": dict(usage.tokens_by_source),
        "queue_s": usage.queue_s,
        "ttft_s": usage.ttft_s,
        "itl_s": usage.itl_s,
        "load_s": usage.load_s,
        "plan": plan_body(usage.planned) if usage.planned else None,
    }


class Reply(Protocol):
    """How one kind of answer is written down. A request may have several, numbered by their ``index``."""

    def whole(self, answers: Sequence[Completion], usage: Usage) -> dict[str, Any]:
        """Return the answers in one piece."""
        ...

    def opening(self, num_answers: int) -> list[dict[str, Any]]:
        """Return the chunks that come before any text."""
        ...

    def piece(self, delta: Delta) -> dict[str, Any]:
        """Return a chunk with more text, or with how likely tokens were whose text is yet to come."""
        ...

    def ending(self, end: Finished) -> dict[str, Any]:
        """Return the chunk that ends one answer."""
        ...


def closing(last: dict[str, Any], usage: Usage, includes_usage: bool) -> list[dict[str, Any]]:
    """Return the chunks that end a stream, the ``last`` answer's end first; the last carries ``kv``."""
    if not includes_usage:
        return [{**last, "kv": kv_body(usage)}]
    return [last, {**last, "choices": [], "usage": usage_body(usage), "kv": kv_body(usage)}]


@dataclass(frozen=True)
class _Envelope:
    model: str
    created_s: int
    texts: TokenTexts
    tells_logprobs: bool
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def around(self, id_prefix: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{id_prefix}-{self.id}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


@dataclass(frozen=True)
class CompletionReply(_Envelope):
    """Answers of ``/v1/completions``."""

    _offsets: dict[int, TextOffsets] = field(default_factory=dict)

    def whole(self, answers: Sequence[Completion], usage: Usage) -> dict[str, Any]:
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        body = self.around("cmpl", "text_completion", choices)
        return {**body, "usage": usage_body(usage), "kv": kv_body(usage)}

    def opening(self, num_answers: int) -> list[dict[str, Any]]:  # noqa: ARG002 - no text yet
        return []

    def piece(self, delta: Delta) -> dict[str, Any]:
        return self._chunk(self._choice(delta.index, delta.text, delta.logprobs, None))

    def ending(self, end: Finished) -> dict[str, Any]:
        return self._chunk(self._choice(end.index, "", (), end.reason))

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self.around("cmpl", "text_completion", [choice])

    def _whole_choice(self, index: int, answer: Completion) -> dict[str, Any]:
        choice = self._choice(index, answer.text, answer.logprobs, answer.reason)
        if self.tells_logprobs and not answer.logprobs:
            choice["logprobs"] = completion_logprobs((), self.texts, self._offsets_of(index))
        if answer.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs_body(answer.prompt_logprobs, self.texts)
        return choice

    def _choice(
        self, index: int, text: str, tokens: Sequence[TokenLogprobs], reason: Reason | None
    ) -> dict[str, Any]:
        logprobs = completion_logprobs(tokens, self.texts, self._offsets_of(index)) if tokens else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _offsets_of(self, index: int) -> TextOffsets:
        if index not in self._offsets:
            self._offsets[index] = self.texts.offsets()
        return self._offsets[index]


class ChatReply(_Envelope):
    """Answers of ``/v1/chat/completions``."""

    def whole(self, answers: Sequence[Completion], usage: Usage) -> dict[str, Any]:
        choices = [self._whole_choice(index, answer) for index, answer in enumerate(answers)]
        body = self.around("chatcmpl", "chat.completion", choices)
        if (prompt := answers[0].prompt_logprobs) is not None:
            body["prompt_logprobs"] = prompt_logprobs_body(prompt, self.texts)
        return {**body, "usage": usage_body(usage), "kv": kv_body(usage)}

    def opening(self, num_answers: int) -> list[dict[str, Any]]:
        return [self._chunk(index, {"role": "assistant", "content": ""}) for index in range(num_answers)]

    def piece(self, delta: Delta) -> dict[str, Any]:
        return self._chunk(delta.index, {"content": delta.text}, delta.logprobs)

    def ending(self, end: Finished) -> dict[str, Any]:
        return self._chunk(end.index, {}, reason=end.reason)

    def _chunk(
        self,
        index: int,
        delta: Mapping[str, str],
        tokens: Sequence[TokenLogprobs] = (),
        reason: Reason | None = None,
    ) -> dict[str, Any]:
        choice = {
            "index": index,
            "delta": dict(delta),
            "logprobs": self._logprobs(tokens),
            "finish_reason": reason,
        }
        return self.around("chatcmpl", "chat.completion.chunk", [choice])

    def _whole_choice(self, index: int, answer: Completion) -> dict[str, Any]:
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": chat_logprobs(answer.logprobs, self.texts) if self.tells_logprobs else None,
            "finish_reason": answer.reason,
        }

    def _logprobs(self, tokens: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self.texts) if tokens else None
