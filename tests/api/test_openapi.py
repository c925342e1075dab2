"""The description of both services: whole, with examples that are what they say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import jsonschema_rs
import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel

from api.openapi import models_of_ours
from api.serving_config import sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.sidecar import open_sidecar

JSON = "application/json"


@pytest.fixture(scope="module")
def store_description(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("store")
    settings = Settings.model_validate(
        {"host_bytes": "1MiB", "disk_bytes": 0, "cache_path": folder, "port": 0}
    )
    with closing(open_sidecar(sidecar_config(settings))) as sidecar:
        return TestClient(create_store_app(sidecar, settings)).get("/openapi.json").json()


@pytest.fixture(params=["with a model", "a store alone"])
def description(request: pytest.FixtureRequest) -> Any:
    if request.param == "a store alone":
        return request.getfixturevalue("store_description")
    client: TestClient = request.getfixturevalue("client")
    return client.get("/openapi.json").json()


def operations(description: Any) -> Iterator[tuple[str, Any]]:
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def test_every_route_says_what_it_does_and_what_it_may_answer(description: Any) -> None:
    for name, operation in operations(description):
        assert operation["summary"], name
        assert len(operation["description"]) > 20, name
        assert "422" not in operation["responses"], name
        open_to_all = name in {"GET /health", "GET /ready"}
        assert ("401" in operation["responses"]) is not open_to_all, name
        assert ("413" in operation["responses"]) is ("requestBody" in operation), name
        assert all(answer["description"] for answer in operation["responses"].values()), name


def test_every_body_and_every_answer_has_a_type_and_an_example(description: Any) -> None:
    for name, operation in operations(description):
        contents = [operation["requestBody"]["content"]] if "requestBody" in operation else []
        contents += [answer.get("content", {}) for answer in operation["responses"].values()]
        for content in contents:
            if JSON in content:
                assert examples(description, content[JSON]["schema"]), (name, content)


def test_every_example_is_what_its_schema_says(description: Any) -> None:
    schemas = description["components"]["schemas"]
    shown = [(name, one) for name, schema in schemas.items() for one in schema.get("examples", ())]
    assert len(shown) > 50
    for name, one in shown:
        whole = {"$ref": f"#/components/schemas/{name}", "components": description["components"]}
        jsonschema_rs.Draft202012Validator(whole).validate(one)


def examples(description: Any, schema: Any) -> Any:
    if "$ref" in schema:
        schema = description["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema.get("examples")


def test_models_have_names_of_their_own(description: Any) -> None:
    schemas = description["components"]["schemas"]
    named = [model.__name__ for model in models_of_ours(BaseModel) if model.__name__ in schemas]
    assert sorted(named) == sorted(set(named))
