"""Every answer that is not a success has OpenAI's shape, and says what to do."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from fastapi.testclient import TestClient

from api.http_errors import ERRORS, error_answer
from api.openai_fields import HARMLESS, NEUTRAL_VALUES
from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from engine_adapter.engine.departures import Departures
from engine_adapter.engine.request import Request, Sampling
from kvstore.errors import OverloadedError
from kvstore.statistics import State
from tests.api.conftest import CONTEXT_TOKENS

MODEL = "tiny-llama"
COMPLETION = {"model": MODEL, "prompt": "the cat", "max_tokens": 2}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 2}


def error_of(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert "\n" not in body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"model": 5}, "model"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"seed": 2**70}, "seed"),
        ({"stop": ["x"] * 50}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"cache_salt": 7}, "cache_salt"),
        ({"cache_salt": "x" * 5000}, "cache_salt"),
        ({"kv": {"cache": "sometimes"}}, "kv.cache"),
        ({"kv": {"ttl_s": 0}}, "kv.ttl_s"),
        ({"kv": {"expected_pause_s": -1}}, "kv.expected_pause_s"),
        ({"kv": {"ttl": 5}}, "kv.ttl"),
        ({"kv": []}, "kv"),
        ({"temprature": 1}, "temprature"),
        ({"priority": 2**40}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 40}, "n"),
        ({"n": "2"}, "n"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"n": 0, "best_of": 2}, "n"),
        ({"n": -1, "best_of": 2}, "n"),
        ({"n": 1, "best_of": 129}, "best_of"),
        ({"n": 1, "best_of": 40}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"echo": True}, "echo"),
        ({"suffix": "!"}, "suffix"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    client: TestClient, changes: dict[str, Any], param: str
) -> None:
    response = client.post(
        "/v1/completions",
        content=json.dumps({**COMPLETION, **changes}),
        headers={"content-type": "application/json"},
    )
    error = error_of(response, 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"].partition("[")[0] == param
    assert error["message"].startswith(error["param"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "body: must be an object"),
        ({}, "model: is required"),
        ({**CHAT, "messages": []}, "messages: must not be empty"),
        ({**CHAT, "messages": [5]}, "messages[0]: must be an object"),
        ({**CHAT, "kv": 1}, "kv: must be an object"),
        ({**CHAT, "kv": {"x": 1}}, "kv.x: is not a field of this API; remove it"),
        ({**CHAT, "x": 1}, "x: is not a field of this API; remove it"),
    ],
)
def test_a_message_has_our_words(client: TestClient, body: object, message: str) -> None:
    assert error_of(client.post("/v1/chat/completions", json=body), 400)["message"] == message


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a"},
                    {"role": "user", "content": "a", "tool_calls": [{}]},
                ]
            },
            "messages[1].tool_calls",
        ),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"n": 0}, "n"),
        ({"n": 40}, "n"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
    ],
)
def test_a_chat_that_cannot_be_served_is_named(
    client: TestClient, changes: dict[str, Any], param: str
) -> None:
    error = error_of(client.post("/v1/chat/completions", json={**CHAT, **changes}), 400)
    assert error["param"] == param


def test_content_that_is_not_text_is_refused(client: TestClient) -> None:
    image = {"type": "image_url", "image_url": {"url": "http://example.com"}}
    messages = [{"role": "user", "content": [image]}]
    error = error_of(client.post("/v1/chat/completions", json={**CHAT, "messages": messages}), 400)
    assert error["param"].startswith("messages[0].content")


@pytest.mark.parametrize("field", sorted(NEUTRAL_VALUES))
def test_an_unserved_field_is_taken_with_its_neutral_values(client: TestClient, field: str) -> None:
    for value in NEUTRAL_VALUES[field]:
        response = client.post("/v1/chat/completions", json={**CHAT, field: value})
        assert response.status_code == 200, response.text


def test_harmless_fields_are_taken(client: TestClient) -> None:
    response = client.post("/v1/chat/completions", json={**CHAT, **{field: {} for field in HARMLESS}})
    assert response.status_code == 200, response.text


@pytest.mark.parametrize("body", [b"{", b'{"model": }', b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b""])
def test_a_body_that_is_no_json_object_is_said_so(client: TestClient, body: bytes) -> None:
    response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert error_of(response, 400)["type"] == "invalid_request_error"


def test_a_body_of_another_type_is_told_which_to_send(client: TestClient) -> None:
    response = client.post("/v1/completions", content=b"{}", headers={"content-type": "text/plain"})
    assert "Content-Type: application/json" in error_of(response, 400)["message"]


def test_what_is_not_there_is_404(client: TestClient) -> None:
    unknown = {**COMPLETION, "model": "gpt-9\ud800"}
    headers = {"content-type": "application/json"}
    response = client.post(
        "/v1/completions", content=json.dumps({**unknown, "model": "gpt-9"}), headers=headers
    )
    error = error_of(response, 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert error_of(client.get("/v1/models/gpt-9"), 404)["code"] == "model_not_found"
    assert error_of(client.get("/v2"), 404)["code"] == "unknown_url"
    assert error_of(client.get("/v1/completions"), 405)["code"] == "method_not_allowed"


@pytest.mark.parametrize("duration", ["1e400", "1e300", "3153600001", "-1", "NaN"])
def test_a_time_beyond_a_century_is_refused_with_the_bounds(
    client: TestClient, serving: Serving, duration: str
) -> None:
    for field, bounds in (("ttl_s", "above 0 and at most"), ("expected_pause_s", "from 0 to")):
        body = json.dumps({**COMPLETION, "prompt": [7] * 50, "kv": {field: 0.5}}).replace("0.5", duration)
        response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        told = f"kv.{field}: must be {bounds} 3153600000 seconds"
        assert error_of(response, 400)["message"] == told
    longest = {**COMPLETION, "prompt": [7] * 50, "kv": {"ttl_s": 3153600000}}
    assert client.post("/v1/completions", json=longest).status_code == 200
    assert serving.engine.flush(10)
    assert serving.store.health().state is State.OK


LONG = "x" * 100_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {**COMPLETION, "model": LONG}),
        ("/v1/completions", {**COMPLETION, LONG: 1}),
        ("/v1/completions", {**COMPLETION, "kv": {LONG: 1}}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "a", LONG: 1}]}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": LONG, "content": "a"}]}),
        ("/admin/explain", {"prompt": "a", "model": LONG}),
        ("/admin/explain", {LONG: 1}),
    ],
)
def test_what_was_sent_is_repeated_only_as_far_as_it_is_short(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:
    response = client.post(path, json=body)
    error = error_of(response, response.status_code)
    assert response.status_code in {400, 404}
    assert len(error["message"]) < 300
    assert len(error["param"]) <= 128


def test_a_long_name_of_a_model_is_cut_and_those_served_are_told(client: TestClient) -> None:
    for response in (
        client.get(f"/v1/models/{LONG[:20_000]}"),
        client.post("/v1/completions", json={**COMPLETION, "model": LONG}),
    ):
        told = f"model: '{'x' * 127}…' is not served here; 'tiny-llama' is"
        assert error_of(response, 404)["message"] == told


def test_what_a_chat_template_says_is_one_short_line(serving: Serving, settings: Settings) -> None:
    tokenizer = copy(serving.tokenizer)
    tokenizer.chat_template = "{{ raise_exception('no\\n' + messages[0].content) }}"
    with TestClient(create_app(replace(serving, tokenizer=tokenizer), settings)) as client:
        body = {**CHAT, "messages": [{"role": "user", "content": LONG}]}
        error = error_of(client.post("/v1/chat/completions", json=body), 400)
    assert error["message"].startswith("messages: the model's chat template refuses them: no xxx")
    assert len(error["message"]) < 400


def test_a_prompt_beyond_the_context_says_its_length(client: TestClient) -> None:
    error = error_of(client.post("/v1/completions", json={**COMPLETION, "prompt": [5] * 2000}), 400)
    assert error["code"] == "context_length_exceeded"
    assert "2000 tokens exceed" in error["message"]


def test_a_prompt_as_long_as_the_context_is_refused_and_one_token_less_has_an_answer_of_one(
    client: TestClient,
) -> None:
    whole = {**COMPLETION, "prompt": [5] * CONTEXT_TOKENS}
    error = error_of(client.post("/v1/completions", json=whole), 400)
    assert "512 tokens exceed the 511 that the model's context beside an answer holds" in error["message"]
    answer = client.post("/v1/completions", json={**whole, "prompt": [5] * 511, "ignore_eos": True}).json()
    assert answer["usage"]["completion_tokens"] == 1
    assert answer["choices"][0]["finish_reason"] == "length"


def test_more_answers_than_the_pool_holds_are_refused(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(device_bytes="144KiB")
    with (
        closing(assemble(serving_config(settings))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        body = {**COMPLETION, "prompt": [5] * 500, "n": 8}
        error = error_of(client.post("/v1/completions", json=body), 400)
        assert error["param"] == "n"
        assert error["message"] == "n: 8 answers need 39 blocks; the device pool has 36"
        assert client.post("/v1/completions", json={**body, "n": 2}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("completions", {**COMPLETION, "prompt": "x" * 10**6}),
        ("chat/completions", {**CHAT, "messages": [{"role": "user", "content": "x" * 10**6}]}),
    ],
)
def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded(
    client: TestClient, path: str, body: dict[str, Any]
) -> None:
    error = error_of(client.post(f"/v1/{path}", json=body), 400)
    assert error["code"] == "context_length_exceeded"
    assert error["message"].startswith("prompt: at least ")


def test_an_oversize_body_is_413_whether_it_says_its_length_or_not(
    serving: Serving, make_settings: Callable[..., Settings]
) -> None:
    with TestClient(create_app(serving, make_settings(max_body_bytes=2048))) as client:
        body = json.dumps({**COMPLETION, "prompt": "x" * 4000}).encode()
        headers = {"content-type": "application/json"}
        assert error_of(client.post("/v1/completions", content=body, headers=headers), 413)
        pieces = (body[start : start + 100] for start in range(0, len(body), 100))
        error = error_of(client.post("/v1/completions", content=pieces, headers=headers), 413)
        assert error["code"] == "request_too_large"
        assert client.post("/v1/completions", json=COMPLETION).status_code == 200


def test_only_the_token_opens_the_service(serving: Serving, make_settings: Callable[..., Settings]) -> None:
    with TestClient(create_app(serving, make_settings(api_token="swordfish"))) as client:
        for headers in ({}, {"Authorization": "Bearer sword"}, {"Authorization": "swordfish"}):
            for path in ("/v1/models", "/metrics", "/openapi.json", "/nowhere"):
                response = client.get(path, headers=headers)
                assert error_of(response, 401)["code"] == "invalid_api_key"
                assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/health").status_code == 200
        allowed = {"Authorization": "Bearer swordfish"}
        assert client.post("/v1/completions", json=COMPLETION, headers=allowed).status_code == 200


def test_a_full_queue_is_429_and_says_when_to_come_back(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Departures, "next_s", lambda *_: 4.2)
    settings = make_settings(max_sequences=1, max_waiting=1)
    with (
        closing(assemble(serving_config(settings))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        long = Request([5, 6, 7], Sampling(max_tokens=400, ignore_eos=True))
        handles = [serving.engine.submit(long, lambda _: None) for _ in range(2)]
        response = client.post("/v1/completions", json=COMPLETION)
        assert error_of(response, 429)["type"] == "rate_limit_error"
        assert response.headers["retry-after"] == "5"
        for handle in handles:
            serving.engine.cancel(handle)


def test_a_closed_engine_is_503(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings()
    with (
        closing(assemble(serving_config(settings))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        serving.engine.close()
        assert error_of(client.post("/v1/completions", json=COMPLETION), 503)["type"] == "server_error"
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "unhealthy")
        assert "closed" in health.json()["reasons"]["engine"]


class _Broken:
    """A tokenizer whose every use is a surprise."""

    chat_template = "x"
    added_tokens_decoder: ClassVar[dict[int, object]] = {}

    def get_vocab(self) -> dict[str, int]:
        return {"x": 0}

    def encode(self, text: str, **_: object) -> list[int]:
        raise LookupError(f"no idea what {text!r} is")


@pytest.fixture
def broken_client(serving: Serving, settings: Settings) -> Iterator[TestClient]:
    app = create_app(replace(serving, tokenizer=_Broken()), settings)  # type: ignore[arg-type]
    with TestClient(app) as client:
        yield client


def test_an_unforeseen_error_is_500_and_its_log_quotes_no_prompt(
    broken_client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        response = broken_client.post("/v1/completions", json={**COMPLETION, "prompt": "my secret"})
    assert error_of(response, 500)["code"] == "internal_error"
    assert "LookupError" in caplog.text
    assert "my secret" not in caplog.text + response.text


def test_the_table_puts_an_error_before_those_it_is_made_of() -> None:
    kinds = [kind for kind, *_ in ERRORS]
    for index, kind in enumerate(kinds):
        assert not any(issubclass(later, kind) for later in kinds[index + 1 :]), kind
    status, body = error_answer(OverloadedError(5))
    assert (status, body["error"]["code"]) == (429, "too_many_waiting")
