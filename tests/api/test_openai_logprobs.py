"""How likely tokens were, in the shapes of the OpenAI API."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
from fastapi.testclient import TestClient
from transformers import PreTrainedTokenizerFast

from api.openai_logprobs import TokenTexts, chat_logprobs, completion_logprobs
from engine_adapter.assemble import Serving
from engine_adapter.engine.events import TokenLogprobs
from tests.api.conftest import SPECIAL_TOKENS, tokenizer_of_bytes
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


def test_an_offset_says_where_in_the_answer_a_token_begins(client: TestClient) -> None:
    (choice,) = complete(client, max_tokens=200, logprobs=0, temperature=2.0, seed=3)["choices"]

    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert sum(token.startswith("token_id:") for token in tokens) > 10
    assert sum(token in SPECIAL_TOKENS for token in tokens) > 1
    for token, (offset, after) in zip(tokens, pairwise([*offsets, len(choice["text"])]), strict=True):
        if token and token not in SPECIAL_TOKENS and not token.startswith("token_id:"):
            assert choice["text"][offset:after] == token


def test_a_drawn_token_is_there_beside_the_likeliest(client: TestClient) -> None:
    told = complete(client, max_tokens=20, logprobs=0, temperature=2.0, seed=1)["choices"][0]["logprobs"]

    assert [list(top) for top in told["top_logprobs"]] == [[token] for token in told["tokens"]]


def test_of_an_answer_without_a_token_nothing_is_told_in_the_same_shape(client: TestClient) -> None:
    form = {"structured_outputs": {"regex": ""}}
    (completion,) = complete(client, logprobs=2, ignore_eos=False, **form)["choices"]
    chat = {**CHAT, "logprobs": True, "ignore_eos": False, **form}
    (answer,) = client.post("/v1/chat/completions", json=chat).json()["choices"]

    assert completion["text"] == answer["message"]["content"] == ""
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    assert completion["logprobs"] == {name: [] for name in names}
    assert answer["logprobs"] == {"content": [], "refusal": None}


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


CHARACTERS = tokenizer_of_bytes()


def told_of(text: str, *tops: tuple[tuple[int, float], ...]) -> dict[str, Any]:
    """Return what a completion tells of the tokens of ``text``, with the likeliest in place of each."""
    numbers = CHARACTERS.encode(text)
    padded = [*tops, *[()] * (len(numbers) - len(tops))]
    tokens = [TokenLogprobs(number, -0.5, 1, top) for number, top in zip(numbers, padded, strict=True)]
    texts = TokenTexts(CHARACTERS)
    return completion_logprobs(tokens, texts, texts.offsets())


def test_a_token_that_is_part_of_a_character_begins_where_the_character_does() -> None:
    told = told_of("dé你<|end|>!")

    lead, trail = told["tokens"][1:3]
    assert told["tokens"] == ["d", lead, trail, *told["tokens"][3:6], "<|end|>", "!"]
    assert {one.partition(":")[0] for one in told["tokens"][1:6]} == {"token_id"}
    assert told["text_offset"] == [0, 1, 1, 2, 2, 2, 3, 3]


def test_bytes_that_are_no_character_count_as_what_stands_for_them() -> None:
    (_, half), (letter,) = CHARACTERS.encode("é"), CHARACTERS.encode("d")
    tokens = [TokenLogprobs(number, -0.5, 1, ()) for number in (half, half, letter, letter)]
    texts = TokenTexts(CHARACTERS)

    assert CHARACTERS.decode([half, half, letter, letter]) == "\N{REPLACEMENT CHARACTER}" * 2 + "dd"
    assert completion_logprobs(tokens, texts, texts.offsets())["text_offset"] == [0, 0, 2, 3]


def test_offsets_go_on_from_chunk_to_chunk() -> None:
    tokens = [TokenLogprobs(number, -0.5, 1, ()) for number in CHARACTERS.encode("dé!")]
    texts = TokenTexts(CHARACTERS)
    offsets = texts.offsets()

    told = [completion_logprobs([one], texts, offsets)["text_offset"] for one in tokens]
    assert told == [[0], [1], [1], [2]]


class _Twins(PreTrainedTokenizerFast):
    """A tokenizer whose tokens 1 and 2 both are ``d``."""

    def decode(self, tokens: list[int], **_: object) -> str:  # type: ignore[override]  # of lists alone
        return "".join({0: "e", 1: "d", 2: "d"}[token] for token in tokens)


def test_of_likely_tokens_with_the_same_text_none_is_left_out() -> None:
    texts = TokenTexts(_Twins(tokenizer_object=CHARACTERS.backend_tokenizer))  # type: ignore[no-untyped-call]
    top = ((1, -0.5), (2, -0.7), (0, -0.9))

    def told(token: int, logprob: float) -> dict[str, float]:
        one = TokenLogprobs(token, logprob, 1, top)
        likely: dict[str, float] = completion_logprobs([one], texts, texts.offsets())["top_logprobs"][0]
        return likely

    assert told(1, -0.5) == {"d": -0.5, "token_id:2": -0.7, "e": -0.9}
    assert told(2, -0.7) == {"token_id:1": -0.5, "d": -0.7, "e": -0.9}


def test_half_a_character_goes_by_its_number_and_what_cannot_be_has_a_finite_logarithm() -> None:
    (half, _), (letter,) = CHARACTERS.encode("é"), CHARACTERS.encode("d")
    texts = TokenTexts(CHARACTERS)
    tokens = [TokenLogprobs(half, -math.inf, 2, ((letter, -0.5),)), TokenLogprobs(letter, -0.5, 1, ())]

    told = completion_logprobs(tokens, texts, texts.offsets())
    assert told["tokens"] == [f"token_id:{half}", "d"]
    assert told["token_logprobs"] == [-9999.0, -0.5]
    assert told["top_logprobs"] == [{"d": -0.5, f"token_id:{half}": -9999.0}, {"d": -0.5}]
    part, whole = chat_logprobs(tokens, texts)["content"]
    assert (part["bytes"], whole["bytes"]) == (None, [0x64])
