"""A real server on a free port, driven by the real ``openai`` client and by rude ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from fastapi.testclient import TestClient

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from tests.api.live import live
from tests.eventually import eventually

MODEL = "tiny-llama"
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 3


@contextmanager
def running(serving: Serving, settings: Settings) -> Iterator[str]:
    """Serve on a free port in a thread, and yield the URL."""
    with live(create_app(serving, settings)) as url:
        yield url


@pytest.fixture(scope="module")
def url(serving: Serving, settings: Settings) -> Iterator[str]:
    with running(serving, settings) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


def assert_nothing_is_held(serving: Serving) -> None:
    """All requests have ended, and everything they held has been given back."""
    statistics = serving.engine.statistics
    eventually(lambda: statistics().num_running == statistics().num_waiting == 0)
    eventually(lambda: statistics().num_available_blocks == statistics().num_blocks)
    eventually(lambda: serving.store.num_holds == 0)
    serving.engine.check()
    serving.store.check()


def test_the_openai_client_streams_a_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": PROMPT}],
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={
            "ignore_eos": True,
            "kv": {"cache": "on", "ttl_s": 60, "session": "s1"},
            "cache_salt": "t1",
        },
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert chunks[-2].choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 8
    sources: dict[str, int] = chunks[-1].model_extra["kv"]["tokens_by_source"]  # type: ignore[index]
    assert sum(sources.values()) == usage.prompt_tokens


def test_the_openai_client_sees_cached_tokens(client: openai.OpenAI) -> None:
    def ask() -> Any:
        return client.completions.create(model=MODEL, prompt=PROMPT + "!", max_tokens=3, temperature=0)

    first, second = ask(), ask()
    assert first.choices[0].text == second.choices[0].text
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    assert second.usage.prompt_tokens_details.cached_tokens > 0


def test_the_openai_client_reads_several_answers_and_how_likely_their_tokens_were(
    client: openai.OpenAI, serving: Serving
) -> None:
    messages: Any = [{"role": "user", "content": PROMPT}]
    options: Any = {"n": 2, "logprobs": True, "top_logprobs": 2, "max_tokens": 4, "seed": 1}
    chat = client.chat.completions.create(
        model=MODEL, messages=messages, extra_body={"ignore_eos": True}, **options
    )
    assert [choice.index for choice in chat.choices] == [0, 1]
    for choice in chat.choices:
        assert choice.logprobs is not None
        assert choice.logprobs.content is not None
        assert [len(token.top_logprobs) for token in choice.logprobs.content] == [2] * 4
    completion = client.completions.create(model=MODEL, prompt=PROMPT, logprobs=1, best_of=3, max_tokens=4)
    assert completion.choices[0].logprobs is not None
    assert_nothing_is_held(serving)


def test_the_openai_client_lists_models_and_raises_its_own_errors(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served here") as missing:
        client.completions.create(model="gpt-9", prompt="x")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="echo: is not supported here"):
        client.completions.create(model=MODEL, prompt="x", echo=True)


def test_requests_side_by_side_get_the_answers_they_get_alone(url: str, serving: Serving) -> None:
    def ask(number: int) -> str:
        body = {"model": MODEL, "prompt": f"{number}: {PROMPT}", "max_tokens": 12, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json={**body, "kv": {"cache": "write"}}, timeout=60)
        return str(answer.json()["choices"][0]["text"])

    alone = [ask(number) for number in range(6)]
    together: dict[int, str] = {}
    threads = [threading.Thread(target=lambda n=n: together.update({n: ask(n)})) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [together[number] for number in range(6)] == alone
    assert_nothing_is_held(serving)


def test_a_client_that_leaves_in_mid_stream_cancels_its_request(url: str, serving: Serving) -> None:
    body = {
        "model": MODEL,
        "prompt": "leaving " + PROMPT,
        "max_tokens": 300,
        "ignore_eos": True,
        "stream": True,
    }
    before = serving.engine.statistics().requests.get("cancelled", 0)
    for _ in range(3):
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_lines())
    eventually(lambda: serving.engine.statistics().requests.get("cancelled", 0) == before + 3)
    assert_nothing_is_held(serving)


def test_a_client_that_leaves_while_it_waits_cancels_its_request(url: str, serving: Serving) -> None:
    body = {"model": MODEL, "prompt": "waiting " + PROMPT, "max_tokens": 300, "ignore_eos": True}
    before = serving.engine.statistics().requests.get("cancelled", 0)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}/v1/completions", json=body, timeout=0.1)
    eventually(lambda: serving.engine.statistics().requests.get("cancelled", 0) == before + 1)
    assert_nothing_is_held(serving)


def test_a_client_that_sends_half_a_body_and_leaves_harms_nobody(url: str, client: openai.OpenAI) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as rude:
        rude.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 500\r\n\r\n{"model": '
        )
    assert client.completions.create(model=MODEL, prompt="x", max_tokens=1).choices


def test_metrics_tell_times_tokens_tiers_and_requests(url: str, client: openai.OpenAI) -> None:
    client.completions.create(model=MODEL, prompt=PROMPT + "?", max_tokens=4, extra_body={"ignore_eos": True})
    text = httpx.get(f"{url}/metrics").text
    values = {
        name: float(value)
        for line in text.splitlines()
        if not line.startswith("#")
        for name, value in [line.rsplit(" ", 1)]
    }
    assert values["prefixd_ttft_seconds_count"] >= 1
    assert values["prefixd_queue_seconds_count"] >= 1
    assert values["prefixd_itl_seconds_count"] >= 3
    assert values['prefixd_prompt_tokens_total{source="computed"}'] > 0
    assert values['prefixd_requests_total{reason="length"}'] >= 1
    assert values["prefixd_requests_running"] == values["prefixd_requests_waiting"] == 0
    for tier in ("device", "host", "disk"):
        assert values[f'prefixd_tier_bytes{{tier="{tier}"}}'] > 0
        assert values[f'prefixd_tier_budget_bytes{{tier="{tier}"}}'] > 0
    for tier in ("host", "disk"):
        assert values[f'prefixd_tier_state{{tier="{tier}"}}'] == 0
        assert values[f'prefixd_tier_evictions_total{{tier="{tier}"}}'] == 0
        assert values[f'prefixd_tier_read_faults_total{{tier="{tier}"}}'] == 0


def test_a_folder_that_cannot_be_used_costs_the_tier_and_no_more(
    make_settings: Callable[..., Settings], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    settings = make_settings(disk_path=tmp_path / "file" / "blocks")
    with (
        closing(assemble(serving_config(settings))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert list(health.json()["reasons"]) == ["disk"]
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        answer = client.post("/v1/completions", json=body).json()
        assert answer["usage"]["completion_tokens"] == 4


def test_health_is_ok_when_all_is_well(url: str) -> None:
    response = httpx.get(f"{url}/health")
    assert (response.status_code, response.json()) == (200, {"status": "ok", "reasons": {}})
