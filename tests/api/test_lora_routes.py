"""LoRA adapters over HTTP and on the command line: named at the start, chosen by ``model``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner, Result

from api.cli import build_cli
from api.server import ready_line
from api.settings import Settings
from engine_adapter.assemble import Serving
from tests.adapters import CONFIG, make_adapter
from tests.api.test_live_server import running

MODEL = "tiny-llama"
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4


@pytest.fixture(scope="module")
def adapter_folders(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: make_adapter(folder / name, model_folder, seed=seed, lora_alpha=400)
        for seed, name in enumerate(("sql", "poet"))
    }


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings], adapter_folders: dict[str, Path]) -> Settings:
    return make_settings(lora={"sql": adapter_folders["sql"], "team/poet": adapter_folders["poet"]})


def complete(client: TestClient, model: str, **fields: Any) -> Any:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def cached(answer: Any) -> int:
    num: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return num


def test_the_model_field_chooses_the_adapter_and_none_shares_with_another(client: TestClient) -> None:
    names = (MODEL, "sql", "team/poet")
    first = [complete(client, name) for name in names]
    assert [answer["model"] for answer in first] == list(names)
    assert len({answer["choices"][0]["text"] for answer in first}) == 3
    assert [cached(answer) for answer in first] == [0, 0, 0]
    for name, before in zip(names, first, strict=True):
        again = complete(client, name)
        assert again["choices"] == before["choices"]
        assert cached(again) > 0


def test_a_chat_has_an_adapter_too(client: TestClient) -> None:
    body = {"model": "sql", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert (answer["model"], answer["usage"]["completion_tokens"]) == ("sql", 2)
    assert client.get("/admin/plans").json()["data"][0]["namespace"] == "tiny-llama with sql"


def test_adapters_are_listed_with_their_parent(client: TestClient) -> None:
    cards = client.get("/v1/models").json()["data"]
    assert [(card["id"], card["parent"]) for card in cards] == [
        (MODEL, None),
        ("sql", MODEL),
        ("team/poet", MODEL),
    ]
    assert client.get("/v1/models/team/poet").json() == cards[2]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/completions", {"model": "poet", "prompt": "the cat"}),
        ("GET", "/v1/models/poet", None),
        ("POST", "/admin/explain", {"model": "poet", "prompt": "the cat"}),
    ],
)
def test_an_unknown_name_is_answered_with_those_there_are(
    client: TestClient, method: str, path: str, body: Any
) -> None:
    response = client.request(method, path, json=body)
    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"] == "model: 'poet' is not served here; 'tiny-llama', 'sql', 'team/poet' are"


def test_a_prompt_is_explained_for_an_adapter(client: TestClient, serving: Serving) -> None:
    prompt = "only for sql: " + PROMPT
    complete(client, "sql", prompt=prompt)

    def explained(model: str | None) -> Any:
        return client.post("/admin/explain", json={"prompt": prompt, "model": model}).json()

    assert explained("sql")["miss"] is None
    digest = serving.model_facts.adapters.digests["sql"]
    for model in (None, MODEL):
        miss = explained(model)["miss"]
        assert miss["cause"] == "other namespace"
        assert miss["differences"] == [{"field": "lora", "here": "none", "there": digest}]


def test_the_command_explains_for_an_adapter(
    serving: Serving, settings: Settings, client: TestClient
) -> None:
    prompt = "told to sql alone: " + PROMPT
    complete(client, "sql", prompt=prompt)
    with running(serving, settings) as url:
        ours, theirs = (
            run("explain", "--url", url, "--prompt", prompt, "--adapter", name).output
            for name in ("sql", "team/poet")
        )
    assert ": device, share" in ours
    assert "found: nothing" in theirs
    assert "stored in another namespace, which differs: lora is " in " ".join(theirs.split())


def test_the_ready_line_names_the_adapters(serving: Serving) -> None:
    class Listener:
        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", 80

    line = ready_line(MODEL, Listener(), serving)  # type: ignore[arg-type]
    assert line.endswith("; adapters: sql, team/poet)")


def run(*arguments: str) -> Result:
    environ = {"COLUMNS": "400", "NO_COLOR": "1", "TERM": "dumb"}
    return CliRunner().invoke(build_cli(), list(arguments), env=environ)


def test_generate_answers_with_an_adapter(
    model_folder: Path, adapter_folders: dict[str, Path], tmp_path: Path
) -> None:
    loras = [flag for name, folder in adapter_folders.items() for flag in ("--lora", f"{name}={folder}")]
    common = (
        "generate", "--model", str(model_folder), "--cache-path", str(tmp_path), "--disk-bytes", "0",
        "--host-bytes", "16MiB", "--device-bytes", "4MiB", *loras, "--prompt", PROMPT, "--max-tokens", "8",
    )  # fmt: skip
    told = [run(*common, *flags) for flags in ((), ("--adapter", "sql"), ("--adapter", "poet"))]
    assert [result.exit_code for result in told] == [0, 0, 0]
    assert len({result.stdout for result in told}) == 3
    unknown = run(*common, "--adapter", "none")
    assert unknown.exit_code == 1
    assert unknown.stderr == "prefixd: lora: 'none' is no adapter that is served; those are: poet, sql\n"


def test_doctor_looks_at_adapters(
    model_folder: Path, adapter_folders: dict[str, Path], tmp_path: Path
) -> None:
    flags = ("--lora", f"sql={adapter_folders['sql']}", "--lora", f"none={tmp_path}")
    result = run("doctor", "--model", str(model_folder), "--disk-bytes", "0", *flags)
    assert result.exit_code == 1
    assert f"ok    adapter    sql: {adapter_folders['sql']}" in result.output
    assert f"FAIL  adapter    none: {tmp_path} has no {CONFIG}, adapter_model.safetensors" in result.output
