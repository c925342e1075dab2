"""``/v1/completions`` and ``/v1/chat/completions``, asked as programs do."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from fastapi.testclient import TestClient

from engine_adapter.assemble import Serving

MODEL = "tiny-llama"
LONG_PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4


def complete(client: TestClient, **fields: Any) -> Any:
    body = {"model": MODEL, "prompt": "the cat", "temperature": 0, "ignore_eos": True, **fields}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def events(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def test_a_completion_has_text_usage_and_where_its_tokens_came_from(client: TestClient) -> None:
    answer = complete(client, max_tokens=5, kv={"cache": "off"})
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    num_prompt_tokens = answer["usage"]["prompt_tokens"]
    assert answer["kv"]["tokens_by_source"] == {"computed": num_prompt_tokens}
    assert answer["kv"]["ttft_s"] > 0


@pytest.mark.parametrize("prompt", ["the cat", [5, 6, 7]])
def test_one_prompt_may_stand_in_a_list(client: TestClient, prompt: str | list[int]) -> None:
    plain, listed = (
        complete(client, prompt=prompt, max_tokens=4),
        complete(client, prompt=[prompt], max_tokens=4),
    )
    assert listed["choices"] == plain["choices"]


def test_a_second_request_takes_its_prefix_from_the_cache(client: TestClient) -> None:
    first = complete(client, prompt=LONG_PROMPT, max_tokens=4)
    second = complete(client, prompt=LONG_PROMPT, max_tokens=4)
    assert second["choices"] == first["choices"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert sum(second["kv"]["tokens_by_source"].values()) == second["usage"]["prompt_tokens"]


def test_another_salt_shares_nothing(client: TestClient) -> None:
    prompt = "salted: " + LONG_PROMPT
    for salt, is_cached in (("a", False), ("b", False), ("a", True), ("b", True), (None, False)):
        answer = complete(client, prompt=prompt, max_tokens=1, cache_salt=salt)
        assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0) is is_cached, salt


def test_a_stream_says_the_same_as_the_whole(client: TestClient) -> None:
    whole = complete(client, max_tokens=20)
    response = client.post(
        "/v1/completions",
        json={
            "model": MODEL,
            "prompt": "the cat",
            "temperature": 0,
            "max_tokens": 20,
            "stream": True,
            "ignore_eos": True,
        },
    )
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = events(response.text)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert set(chunks[-1]["kv"]) == {"tokens_by_source", "queue_s", "ttft_s", "itl_s", "load_s", "plan"}
    assert all("usage" not in chunk for chunk in chunks)


def test_usage_comes_in_a_chunk_of_its_own_when_it_is_asked_for(client: TestClient) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "the cat"}],
        "max_tokens": 3,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    chunks = events(client.post("/v1/chat/completions", json=body).text)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 3
    assert "tokens_by_source" in chunks[-1]["kv"]


def test_token_ids_are_a_prompt_as_well(client: TestClient, serving: Serving) -> None:
    ids = serving.tokenizer.encode("the cat")
    assert complete(client, prompt=ids)["choices"] == complete(client)["choices"]


def test_a_chat_is_written_in_the_models_template(client: TestClient, serving: Serving) -> None:
    body = {
        "model": MODEL,
        "messages": [
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]},
        ],
        "temperature": 0,
        "max_completion_tokens": 6,
        "ignore_eos": True,
    }
    answer = client.post("/v1/chat/completions", json=body).json()
    written = "<|system|>be brief<|end|><|user|>the cat<|end|><|assistant|>"
    same = complete(client, prompt=serving.tokenizer.encode(written), max_tokens=6)
    assert answer["choices"][0]["message"]["content"] == same["choices"][0]["text"]
    assert answer["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]


def test_a_stop_string_ends_the_answer_before_it(client: TestClient) -> None:
    text = complete(client, max_tokens=20)["choices"][0]["text"]
    stop = text[5:8]
    answer = complete(client, max_tokens=20, stop=stop)
    assert answer["choices"][0]["text"] == text[: text.index(stop)]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_seed_repeats_an_answer(client: TestClient) -> None:
    answers = [
        complete(client, temperature=1.5, seed=seed, max_tokens=30, top_k=-1)["choices"] for seed in (7, 7, 8)
    ]
    assert answers[0] == answers[1] != answers[2]


def test_a_completion_is_sixteen_tokens_unless_more_are_asked_for(client: TestClient) -> None:
    assert complete(client)["usage"]["completion_tokens"] == 16


def test_fields_that_change_nothing_are_taken(client: TestClient) -> None:
    complete(client, user="me", n=1, logprobs=None, echo=False, best_of=1, presence_penalty=0, logit_bias={})


@pytest.mark.parametrize("path", ["/v1/models", f"/v1/models/{MODEL}"])
def test_the_model_is_listed(client: TestClient, path: str) -> None:
    answer = client.get(path).json()
    card = answer["data"][0] if answer["object"] == "list" else answer
    assert (card["id"], card["object"], card["max_model_len"]) == (MODEL, "model", 512)


def test_no_log_quotes_a_prompt_or_an_answer(client: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = complete(client, prompt="my secret is swordfish", max_tokens=30, cache_salt="salty", seed=1)
    text = answer["choices"][0]["text"]
    assert not any(secret in caplog.text for secret in ("swordfish", "salty", text))
