"""Asks an OpenAI-compatible server, streamed, and measures what its client sees."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from kvstore.errors import ServerFailedError

_LONGEST_SILENCE_S = 300.0


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; times are the client's, in seconds.

    ``tokens_by_source`` says where the prompt's keys and values came from, as the server counts.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    tokens_by_source: Mapping[str, int]
    ttft_s: float
    itl_s: float


def ask(url: str, model: str, system: str, question: str, max_tokens: int, cache: str) -> Answer:
    """Send a chat of two messages, answered greedily; blocks until the answer is complete.

    ``cache`` is the request's ``kv.cache``. Raises ``ServerFailedError`` for anything but an answer.
    """
    body = {
        "model": model,
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "kv": {"cache": cache},
    }
    started_s = time.monotonic()
    pieces: list[tuple[float, str]] = []
    last: dict[str, Any] = {}
    for chunk in _chunks(f"{url}/v1/chat/completions", body):
        last = chunk
        if text := _text_of(chunk):
            pieces.append((time.monotonic() - started_s, text))
    return _answer(pieces, last)


def _chunks(url: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    try:
        with httpx.stream("POST", url, json=body, timeout=_LONGEST_SILENCE_S, trust_env=False) as response:
            if response.is_error:
                raise ServerFailedError(
                    f"the server answered {response.status_code}: {response.read().decode()}"
                )
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
    except httpx.TransportError as error:
        raise ServerFailedError(f"the server did not answer: {error}") from error


def _text_of(chunk: Mapping[str, Any]) -> str:
    if "error" in chunk:
        raise ServerFailedError(f"the server answered with an error: {chunk['error'].get('message')}")
    choices = chunk["choices"]
    return (choices[0]["delta"].get("content") or "") if choices else ""


def _answer(pieces: list[tuple[float, str]], last: Mapping[str, Any]) -> Answer:
    if not pieces or "usage" not in last:
        raise ServerFailedError("the server ended its answer early")
    completion_tokens = last["usage"]["completion_tokens"]
    first_s, last_s = pieces[0][0], pieces[-1][0]
    return Answer(
        text="".join(text for _, text in pieces),
        prompt_tokens=last["usage"]["prompt_tokens"],
        completion_tokens=completion_tokens,
        tokens_by_source=last["kv"]["tokens_by_source"],
        ttft_s=first_s,
        itl_s=(last_s - first_s) / max(completion_tokens - 1, 1),
    )
