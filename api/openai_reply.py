"""Answers as the OpenAI API shapes them, whole and in chunks, with this project's ``kv`` beside them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from api.kv_reply import plan_body
from engine_adapter.engine.request import Reason, Usage


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
    """How one kind of answer is written down."""

    def whole(self, text: str, reason: Reason, usage: Usage) -> dict[str, Any]:
        """Return the answer in one piece."""
        ...

    def opening(self) -> list[dict[str, Any]]:
        """Return the chunks that come before any text."""
        ...

    def piece(self, text: str) -> dict[str, Any]:
        """Return a chunk with more text."""
        ...

    def closing(self, reason: Reason, usage: Usage, includes_usage: bool) -> list[dict[str, Any]]:
        """Return the chunks that end the answer; the last of them carries ``kv``."""
        ...


@dataclass(frozen=True)
class _Envelope:
    model: str
    created_s: int
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def around(self, id_prefix: str, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"{id_prefix}-{self.id}",
            "object": kind,
            "created": self.created_s,
            "model": self.model,
            "choices": choices,
        }


class CompletionReply(_Envelope):
    """Answers of ``/v1/completions``."""

    def whole(self, text: str, reason: Reason, usage: Usage) -> dict[str, Any]:
        return {**self._chunk(text, reason), "usage": usage_body(usage), "kv": kv_body(usage)}

    def opening(self) -> list[dict[str, Any]]:
        return []

    def piece(self, text: str) -> dict[str, Any]:
        return self._chunk(text, None)

    def closing(self, reason: Reason, usage: Usage, includes_usage: bool) -> list[dict[str, Any]]:
        return _closing(self._chunk("", reason), usage, includes_usage)

    def _chunk(self, text: str, reason: Reason | None) -> dict[str, Any]:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        return self.around("cmpl", "text_completion", [choice])


class ChatReply(_Envelope):
    """Answers of ``/v1/chat/completions``."""

    def whole(self, text: str, reason: Reason, usage: Usage) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
        answer = self.around("chatcmpl", "chat.completion", [choice])
        return {**answer, "usage": usage_body(usage), "kv": kv_body(usage)}

    def opening(self) -> list[dict[str, Any]]:
        return [self._chunk({"role": "assistant", "content": ""}, None)]

    def piece(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text}, None)

    def closing(self, reason: Reason, usage: Usage, includes_usage: bool) -> list[dict[str, Any]]:
        return _closing(self._chunk({}, reason), usage, includes_usage)

    def _chunk(self, delta: Mapping[str, str], reason: Reason | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": reason}
        return self.around("chatcmpl", "chat.completion.chunk", [choice])


def _closing(last: dict[str, Any], usage: Usage, includes_usage: bool) -> list[dict[str, Any]]:
    if not includes_usage:
        return [{**last, "kv": kv_body(usage)}]
    return [last, {**last, "choices": [], "usage": usage_body(usage), "kv": kv_body(usage)}]
