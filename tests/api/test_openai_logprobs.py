"""How likely tokens were, in the shapes of the OpenAI API."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.openai_logprobs import TokenTexts, chat_logprobs, completion_logprobs
from engine_adapter.assemble import Serving
from engine_adapter.engine.request import TokenLogprobs
from tests.api.test_completions import MODEL, complete, events

CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "the cat"}],
    "temperature": 0,
    "max_tokens": 6,
    "ignore_eos": True,
}


def test_a_completion_tells_of_each_token(client: TestClient) -> None:
    (choice,) = complete(client, max_tokens=6, logprobs=3)["choices"]

    told = choice["logprobs"]
    assert set(told) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(told["tokens"]) == len(told["token_logprobs"]) == 6
    for token, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        assert top[token] == logprob == max(top.values())
        assert len(top) <= 3
    lengths = [len(token) for token in told["tokens"]]
    assert told["text_offset"] == [sum(lengths[:index]) for index in range(6)]


def test_a_drawn_token_is_there_beside_the_likeliest(client: TestClient) -> None:
    told = complete(client, max_tokens=20, logprobs=0, temperature=2.0, seed=1)["choices"][0]["logprobs"]

    assert [list(top) for top in told["top_logprobs"]] == [[token] for token in told["tokens"]]


def test_who_does_not_ask_is_told_nothing(client: TestClient) -> None:
    assert complete(client)["choices"][0]["logprobs"] is None
    assert client.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["logprobs"] is None


def test_a_chat_tells_of_each_token(client: TestClient) -> None:
    body = {**CHAT, "logprobs": True, "top_logprobs": 2}
    (choice,) = client.post("/v1/chat/completions", json=body).json()["choices"]

    assert len(choice["logprobs"]["content"]) == 6
    for one in choice["logprobs"]["content"]:
        assert set(one) == {"token", "logprob", "bytes", "top_logprobs"}
        first, second = one["top_logprobs"]
        assert (first["token"], first["logprob"]) == (one["token"], one["logprob"])
        assert first["logprob"] >= second["logprob"]


@pytest.mark.parametrize("stop", [None, "zzz"])
def test_a_stream_tells_the_same_as_the_whole(client: TestClient, stop: str | None) -> None:
    fields: dict[str, Any] = {"max_tokens": 12, "logprobs": 2, "stop": stop}
    whole = complete(client, **fields)["choices"][0]["logprobs"]
    body = {"model": MODEL, "prompt": "the cat", "temperature": 0, "ignore_eos": True, "stream": True}
    chunks = events(client.post("/v1/completions", json={**body, **fields}).text)

    told = [logprobs for chunk in chunks if (logprobs := chunk["choices"][0]["logprobs"])]
    for name, values in whole.items():
        assert [value for logprobs in told for value in logprobs[name]] == values


def test_a_prompt_is_told_about_by_id(client: TestClient, serving: Serving) -> None:
    prompt = [5, 6, 7, 8, 9]
    (choice,) = complete(client, prompt=prompt, prompt_logprobs=2)["choices"]

    first, *rest = choice["prompt_logprobs"]
    assert first is None
    for token, told in zip(prompt[1:], rest, strict=True):
        assert set(told[str(token)]) == {"logprob", "rank", "decoded_token"}
        assert told[str(token)]["decoded_token"] == TokenTexts(serving.tokenizer).of(token)
        assert sorted(one["rank"] for one in told.values())[:2] == [1, 2]


def test_a_chats_prompt_is_told_about_beside_its_choices(client: TestClient) -> None:
    answer = client.post("/v1/chat/completions", json={**CHAT, "prompt_logprobs": 0}).json()

    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


class _Halves:
    """A tokenizer whose token 1 is half a character."""

    def decode(self, tokens: list[int], **_: object) -> str:
        return {0: "é", 1: "\N{REPLACEMENT CHARACTER}"}[tokens[0]]


def test_half_a_character_goes_by_its_number_and_what_cannot_be_has_a_finite_logarithm() -> None:
    texts = TokenTexts(_Halves())
    tokens = [TokenLogprobs(1, -math.inf, 2, ((0, -0.5),)), TokenLogprobs(0, -0.5, 1, ())]

    told = completion_logprobs(tokens, texts, 10)
    assert told["tokens"] == ["token_id:1", "é"]
    assert told["token_logprobs"] == [-9999.0, -0.5]
    assert told["top_logprobs"] == [{"é": -0.5, "token_id:1": -9999.0}, {"é": -0.5}]
    assert told["text_offset"] == [10, 20]
    half, whole = chat_logprobs(tokens, texts)["content"]
    assert (half["bytes"], whole["bytes"]) == (None, [0xC3, 0xA9])
