"""Requests made from the description of both services: no fault, and no answer that it does not tell of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from schemathesis.config import (
    ChecksConfig,
    GenerationConfig,
    PhasesConfig,
    PositiveDataAcceptanceConfig,
    ProjectConfig,
    ProjectsConfig,
    SchemathesisConfig,
    StatefulPhaseConfig,
)
from schemathesis.engine import events, from_schema

from api.service import create_app
from api.serving_config import serving_config, sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.assemble import assemble
from engine_adapter.sidecar import open_sidecar
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import TieredStore

NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)
MAY_DO_EVERYTHING = {"Authorization": "Bearer swordfish"}
# A request may fit the description and still make no sense, such as one for a model that is not served.
CHECKS = ChecksConfig(positive_data_acceptance=PositiveDataAcceptanceConfig(enabled=False))
NUM_EXAMPLES = 3


@pytest.fixture
def store_app(tmp_path: Path) -> Iterator[FastAPI]:
    settings = Settings.model_validate({
        "host_bytes": "1MiB", "disk_bytes": "4MiB", "disk_path": tmp_path / "blocks", "cache_path": tmp_path,
        "port": 0, "api_token": "swordfish",
    })  # fmt: skip
    with closing(open_sidecar(sidecar_config(settings))) as sidecar:
        fill(sidecar.store)
        yield create_store_app(sidecar, settings)


@pytest.fixture
def model_app(make_settings: Callable[..., Settings]) -> Iterator[FastAPI]:
    settings = make_settings(api_token="swordfish")
    with closing(assemble(serving_config(settings))) as serving:
        fill(serving.store)
        yield create_app(serving, settings)


def fill(store: TieredStore) -> None:
    keys = chain_keys(NAMESPACE.digest, range(64), 16)
    for key, parent in zip(keys, [b"", *keys], strict=False):
        store.put(NAMESPACE, key, parent, memoryview(bytes(4096)))
    assert store.flush(10.0)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("paths", ["^/admin/[a-n]", "^/admin/[o-z]", "^/(?!admin)"])
@pytest.mark.parametrize("served", ["store_app", "model_app"])
def test_every_answer_is_one_that_is_described(
    served: str, paths: str, request: pytest.FixtureRequest
) -> None:
    app: FastAPI = request.getfixturevalue(served)
    project = ProjectConfig(
        headers=MAY_DO_EVERYTHING,
        checks=CHECKS,
        generation=GenerationConfig(max_examples=NUM_EXAMPLES, deterministic=True, database="none"),
        phases=PhasesConfig(stateful=StatefulPhaseConfig(enabled=False)),
    )
    config = SchemathesisConfig(seed=1, projects=ProjectsConfig(default=project))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, config=config, headers=MAY_DO_EVERYTHING)
    labels, faults = tried(schema.include(path_regex=paths))
    assert faults == []
    assert len(labels) > 2


def tried(schema: Any) -> tuple[set[str], list[str]]:
    """Return which operations were tried, and what is wrong with which of them."""
    labels, faults = set[str](), list[str]()
    for event in from_schema(schema).execute():
        if isinstance(event, events.ScenarioFinished):
            labels.add(str(event.label))
            for name, checks in event.recorder.checks.items():
                answer = event.recorder.interactions[name].response
                told = answer.content[:300] if answer else None
                failures = [check.failure_info for check in checks if check.failure_info]
                faults += [
                    f"{event.label}: {one.failure.title}: {one.failure.message}: {one.code_sample}: {told!r}"
                    for one in failures
                ]
        elif isinstance(event, events.NonFatalError | events.FatalError):
            faults.append(repr(event))
    return labels, faults
