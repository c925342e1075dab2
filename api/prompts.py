"""From text and chats to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jinja2 import TemplateError

from kvstore.errors import PromptTooLongError, RequestError, one_line

ChatMessage = dict[str, Any]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a plain prompt, with the special tokens that the model wants around it."""
    return list(tokenizer.encode(text))


def encode_chat(tokenizer: Any, messages: Sequence[ChatMessage]) -> list[int]:
    """Return the ids of a chat in the model's template. Raises what ``chat_text`` raises."""
    return list(tokenizer.encode(chat_text(tokenizer, messages), add_special_tokens=False))


def chat_text(tokenizer: Any, messages: Sequence[ChatMessage]) -> str:
    """Return a chat in the model's template, up to where the assistant speaks.

    Raises ``RequestError`` when the model has no template or its template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise RequestError("messages", "this model has no chat template; use /v1/completions")
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True))
    except TemplateError as error:
        raise RequestError("messages", f"the model's chat template refuses them: {one_line(error)}") from None


class PromptEncoder:
    """Encodes on a thread of its own, one prompt at a time: a tokenizer is not made for several threads.

    A text that could not fit if all its tokens were the longest there are is refused with
    ``PromptTooLongError`` and not encoded: a body's worth takes many seconds and much memory.
    """

    def __init__(self, tokenizer: Any, context_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._context_tokens = context_tokens
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    async def text(self, text: str) -> list[int]:
        """Do what ``encode_text`` does, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._encode, text, True)

    async def chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Do what ``encode_chat`` does, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._thread, lambda: self._encode(chat_text(self._tokenizer, messages), False)
        )

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        least_tokens = len(text) // self._longest_token
        if least_tokens > self._context_tokens:
            raise PromptTooLongError(least_tokens, self._context_tokens, "model's context", at_least=True)
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def close(self) -> None:
        """End the thread when its prompts are done; idempotent."""
        self._thread.shutdown(wait=False)
