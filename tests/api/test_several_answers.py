"""``n`` and ``best_of``, as programs ask for them."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import Any

from fastapi.testclient import TestClient

from tests.api.test_completions import LONG_PROMPT, MODEL, complete, events

DRAWN = {"temperature": 1.5, "seed": 3, "max_tokens": 12}


def texts(answer: Any) -> list[str]:
    return [choice["text"] for choice in answer["choices"]]


def test_each_answer_is_that_of_its_own_seed(client: TestClient) -> None:
    answer = complete(client, n=3, **DRAWN)

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert texts(answer) == [texts(complete(client, **{**DRAWN, "seed": 3 + i}))[0] for i in range(3)]
    assert len(set(texts(answer))) == 3


def test_the_prompt_counts_once_and_every_answers_tokens(client: TestClient) -> None:
    answer = complete(client, prompt=f"once: {LONG_PROMPT}", n=4, max_tokens=5)

    usage = answer["usage"]
    assert usage["completion_tokens"] == 20
    assert usage["total_tokens"] == usage["prompt_tokens"] + 20
    assert answer["kv"]["tokens_by_source"] == {"computed": usage["prompt_tokens"]}


def test_a_stream_has_every_answer_and_one_end(client: TestClient) -> None:
    whole = complete(client, n=3, **DRAWN)
    body = {"model": MODEL, "prompt": "the cat", "ignore_eos": True, "stream": True, "n": 3, **DRAWN}
    chunks = events(client.post("/v1/completions", json=body).text)

    told, ends = defaultdict[int, str](str), list[int]()
    for chunk in chunks:
        (choice,) = chunk["choices"]
        told[choice["index"]] += choice["text"]
        ends += [choice["index"]] if choice["finish_reason"] else []
    assert [told[index] for index in range(3)] == texts(whole)
    assert sorted(ends) == [0, 1, 2]
    assert [("kv" in chunk) for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_a_chat_has_several_answers_too(client: TestClient) -> None:
    chat = {"messages": [{"role": "user", "content": "the cat"}], "model": MODEL, "ignore_eos": True}
    whole = client.post("/v1/chat/completions", json={**chat, **DRAWN, "n": 2}).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events(client.post("/v1/chat/completions", json={**chat, **DRAWN, "n": 2, **options}).text)

    opening, last = chunks[:2], chunks[-1]
    assert [chunk["choices"][0]["delta"]["role"] for chunk in opening] == ["assistant", "assistant"]
    told = defaultdict[int, str](str)
    for chunk in chunks[2:-1]:
        told[chunk["choices"][0]["index"]] += chunk["choices"][0]["delta"].get("content", "")
    assert [told[0], told[1]] == [choice["message"]["content"] for choice in whole["choices"]]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 24)


def test_the_best_are_the_likeliest_of_all(client: TestClient) -> None:
    every = complete(client, n=6, logprobs=0, **DRAWN)["choices"]
    ranked = sorted(every, key=lambda choice: -fmean(choice["logprobs"]["token_logprobs"]))

    best = complete(client, n=2, best_of=6, **DRAWN)

    assert texts(best) == [choice["text"] for choice in ranked[:2]]
    assert [choice["logprobs"] for choice in best["choices"]] == [None, None]
    assert best["usage"]["completion_tokens"] == 6 * 12
    told = complete(client, n=2, best_of=6, logprobs=0, **DRAWN)["choices"]
    assert [choice["logprobs"] for choice in told] == [choice["logprobs"] for choice in ranked[:2]]
