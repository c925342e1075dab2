"""From text and chats to token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jinja2 import TemplateError

from kvstore.errors import RequestError

ChatMessage = dict[str, Any]


def encode_text(tokenizer: Any, text: str) -> list[int]:
    """Return the ids of a plain prompt, with the special tokens that the model wants around it."""
    return list(tokenizer.encode(text))


def encode_chat(tokenizer: Any, messages: Sequence[ChatMessage]) -> list[int]:
    """Return the ids of a chat in the model's template, up to where the assistant speaks.

    Raises ``RequestError`` when the model has no template or its template refuses the messages.
    """
    if not tokenizer.chat_template:
        raise RequestError("messages", "this model has no chat template; use /v1/completions")
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    except TemplateError as error:
        raise RequestError("messages", f"the model's chat template refuses them: {error}") from None
    return list(tokenizer.encode(text, add_special_tokens=False))


class PromptEncoder:
    """Encodes on a thread of its own, one prompt at a time: a tokenizer is not made for several threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="encode")

    async def text(self, text: str) -> list[int]:
        """Do what ``encode_text`` does, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, encode_text, self._tokenizer, text)

    async def chat(self, messages: Sequence[ChatMessage]) -> list[int]:
        """Do what ``encode_chat`` does, off the event loop."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, encode_chat, self._tokenizer, messages)

    def close(self) -> None:
        """End the thread when its prompts are done; idempotent."""
        self._thread.shutdown(wait=False)
