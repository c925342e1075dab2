"""Answers held to a form, as programs of OpenAI's and of vLLM's API ask for it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import assemble
from tests.api.test_completions import MODEL, events

CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20},
        "people": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}


def ask(client: TestClient, route: str, **fields: Any) -> Any:
    asked = (
        {"prompt": "the cat"} if route == "completions" else {"messages": [{"role": "user", "content": "x"}]}
    )
    body = {"model": MODEL, "max_tokens": 300, "seed": 1, **asked, **fields}
    return client.post(f"/v1/{route}", json=body)


def text_of(response: Any) -> str:
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def is_city(text: str) -> bool:
    value = json.loads(text)
    return [*value] == ["city", "people"] and isinstance(value["city"], str) and value["people"] >= 0


@pytest.mark.parametrize("route", ["completions", "chat/completions"])
@pytest.mark.parametrize(
    "asked",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}},
        {"structured_outputs": {"json": CITY}},
        {"structured_outputs": {"json": json.dumps(CITY)}},
    ],
)
def test_an_answer_is_what_the_schema_asks_for(client: TestClient, route: str, asked: dict[str, Any]) -> None:
    assert is_city(text_of(ask(client, route, **asked)))


def test_regexes_and_choices_are_vllms(client: TestClient) -> None:
    date, choices = r"20[0-9]{2}-[01][0-9]", ["the cat", "the dog"]
    assert re.fullmatch(date, text_of(ask(client, "completions", structured_outputs={"regex": date})))
    assert text_of(ask(client, "chat/completions", structured_outputs={"choice": choices})) in choices


@pytest.mark.parametrize(
    "asked", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_any_object_begins_as_one_and_may_be_cut(client: TestClient, asked: dict[str, Any]) -> None:
    choice = ask(client, "completions", max_tokens=3, **asked).json()["choices"][0]

    assert choice["text"].startswith("{")
    assert choice["finish_reason"] in {"length", "stop"}


def test_what_asks_for_nothing_changes_nothing(client: TestClient) -> None:
    plain, *same = (
        ask(client, "completions", max_tokens=20, **asked).json()["choices"]
        for asked in (
            {},
            {"response_format": {"type": "text"}},
            {"structured_outputs": {"json_object": False}},
        )
    )
    assert same == [plain, plain]


def test_several_answers_stream_side_by_side(client: TestClient) -> None:
    response = ask(client, "completions", n=3, stream=True, structured_outputs={"regex": "[a-f]{9}"})
    texts = ["", "", ""]
    for chunk in events(response.text):
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]

    assert all(re.fullmatch("[a-f]{9}", text) for text in texts)


@pytest.mark.parametrize(
    ("asked", "param", "reason"),
    [
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "unclosed group"),
        ({"structured_outputs": {"json": {"type": "nope"}}}, "structured_outputs", "Invalid type: nope"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "at least one choice"),
        ({"structured_outputs": {"grammar": "start: /a/"}}, "structured_outputs.grammar", "not a field"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "must be an object"),
        ({"structured_outputs": {}}, "structured_outputs", "give one of json, json_object, regex and choice"),
        ({"structured_outputs": {"json": None}}, "structured_outputs", "give one of"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "one constraint"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "one constraint",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema goes with"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "Unimplemented keys",
        ),
        ({"response_format": {"type": "xml"}}, "response_format.type", "must be 'text'"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "ends where it must"),
    ],
)
def test_what_cannot_be_asked_is_named(
    client: TestClient, asked: dict[str, Any], param: str, reason: str
) -> None:
    response = ask(client, "chat/completions", **asked)
    error = response.json()["error"]

    assert (response.status_code, error["param"]) == (400, param)
    assert reason in error["message"]


def test_a_schema_that_json_can_hardly_hold_is_refused(client: TestClient) -> None:
    deep = '{"items":' * 3000 + "{}" + "}" * 3000
    for schema in (deep, '{"const": NaN}', '{"const": "\\ud800"}', '{"maximum": 1' + "0" * 5000 + "}"):
        body = f'{{"model": "{MODEL}", "prompt": "x", "structured_outputs": {{"json": {schema}}}}}'
        response = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 400, response.text


def test_without_the_library_the_answer_says_what_to_install(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    response = ask(client, "completions", response_format={"type": "json_object"})

    assert response.status_code == 400
    assert "response_format: needs llguidance: pip install 'prefixd[constrained]'" in response.text
    assert ask(client, "completions", response_format={"type": "text"}).status_code == 200


def test_a_real_model_writes_what_it_is_asked_for(
    make_settings: Callable[..., Settings], smollm2: Path
) -> None:
    settings = make_settings(model=smollm2, device_bytes="64MiB", host_bytes="64MiB")
    chat = [{"role": "user", "content": "Which city is the capital of France? How many people live there?"}]
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    with (
        closing(assemble(serving_config(settings))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        response = ask(
            client,
            "chat/completions",
            model=settings.model_name,
            messages=chat,
            temperature=0,
            response_format=form,
        )
    assert json.loads(text_of(response))["city"] == "Paris"
