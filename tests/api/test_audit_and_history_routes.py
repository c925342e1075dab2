"""What the audit in idle time has found, and how the last hour went, over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.history_readings import store_reading
from api.service import create_app
from api.serving_config import serving_config, sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.assemble import Serving, assemble
from engine_adapter.sidecar import open_sidecar
from kvstore.clock import Clock
from kvstore.keys import chain_keys
from tests.eventually import eventually

PROMPT = "a prompt that is long enough for some whole blocks of tokens, and for the audit to have work"
TOKENS = """
[tokens.acme]
token = "acme's"
role = "admin"
tenant = "acme"
[tokens.reader]
token = "reader's"
role = "read"
"""


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory) -> Settings:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    return make_settings(recheck_share=1.0, tokens=tokens, api_token="operator's")


@pytest.fixture(scope="module")
def serving(settings: Settings) -> Iterator[Serving]:
    with closing(assemble(serving_config(settings, is_watched=True))) as serving:
        yield serving


@pytest.fixture(scope="module")
def app_client(serving: Serving, settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(serving, settings)) as client:
        yield client


@pytest.fixture
def client(app_client: TestClient) -> TestClient:
    app_client.headers["authorization"] = "Bearer operator's"
    return app_client


def complete(client: TestClient, prompt: str) -> None:
    body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    assert client.post("/v1/completions", json=body).status_code == 200


def ok(response: Any) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def test_the_audit_tells_what_it_compared(client: TestClient, serving: Serving) -> None:
    complete(client, PROMPT)
    assert serving.engine.flush()
    eventually(lambda: ok(client.get("/admin/audit"))["coverage"] == 1.0)

    audit = ok(client.get("/admin/audit"))
    assert audit["share"] == 1.0
    assert audit["prompts"] == 1
    assert audit["compared_blocks"] >= 2
    assert (audit["wrong_blocks"], audit["failures"], audit["last_wrong"]) == (0, 0, [])
    assert 0 < audit["spent_s"] <= audit["idle_s"] + 1
    metrics = client.get("/metrics").text
    assert f"prefixd_audit_blocks_total {float(audit['compared_blocks'])}" in metrics
    assert "prefixd_audit_coverage 1.0" in metrics


def test_a_wrong_block_is_told_with_its_place_and_makes_the_server_degraded(
    client: TestClient, serving: Serving
) -> None:
    prompt = "the other prompt, of which one block is going to be stored with numbers of nobody. " * 2
    complete(client, prompt)
    assert serving.engine.flush()
    eventually(lambda: ok(client.get("/admin/audit"))["coverage"] == 1.0)
    ids = serving.tokenizer(prompt)["input_ids"]
    space = serving.model_facts.namespace
    keys = chain_keys(space.digest, ids, space.block_tokens)
    ok(client.put("/admin/audit", json={"share": 0.0}))  # it forgets what it has compared as right
    serving.engine.clear_pool()
    assert serving.store.evict([keys[3]]) == 1
    wrong = memoryview(bytes(serving.model_facts.kv_shape.block_bytes))
    assert serving.store.put(space, keys[3], keys[2], wrong)
    serving.engine.rechecker._book._compared.clear()
    ok(client.put("/admin/audit", json={"share": 1.0}))
    complete(client, prompt)
    eventually(lambda: ok(client.get("/admin/audit"))["wrong_blocks"] > 0)

    (found,) = ok(client.get("/admin/audit"))["last_wrong"]
    assert found["key"] == keys[3].hex()
    assert (found["block"], found["tenant"], found["namespace"]) == (3, "unsalted", space.digest.hex())
    health = ok(client.get("/health"))
    assert health["status"] == "degraded"
    assert "was not what its tokens give" in health["reasons"]["audit"]
    assert "prefixd_audit_wrong_blocks_total 1.0" in client.get("/metrics").text
    serving.engine.clear_pool()
    serving.store.clear()
    assert ok(client.get("/health")) == {"status": "ok", "reasons": {}}


def test_its_share_is_set_by_operators_and_that_is_logged(client: TestClient) -> None:
    assert ok(client.put("/admin/audit", json={"share": 0.25}))["share"] == 0.25
    entry = ok(client.get("/admin/log"))["data"][0]
    assert (entry["action"], entry["on"], entry["outcome"]) == ("PUT /admin/audit", {"share": 0.25}, "done")
    for bad in ({"share": 1.5}, {"share": "much"}, {}, {"share": 0.1, "more": 1}):
        assert client.put("/admin/audit", json=bad).status_code == 400
    client.headers["authorization"] = "Bearer reader's"
    assert client.put("/admin/audit", json={"share": 1.0}).status_code == 403
    assert ok(client.get("/admin/audit"))["share"] == 0.25


@pytest.mark.parametrize("path", ["/admin/audit", "/admin/history"])
def test_what_is_of_all_tenants_is_not_for_one_of_them(client: TestClient, path: str) -> None:
    client.headers["authorization"] = "Bearer acme's"
    answer = client.get(path)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "not_allowed"


def test_neither_tokens_nor_text_are_in_what_is_told(
    client: TestClient, serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        complete(client, "xylophone " * 30)
        told = client.get("/admin/audit").text + client.get("/admin/history").text + caplog.text
    assert "xylophone" not in told


def test_one_that_was_off_at_the_start_cannot_be_switched_on(make_settings: Callable[..., Settings]) -> None:
    settings = make_settings(recheck_share=0.0)
    with (
        closing(assemble(serving_config(settings, is_watched=True))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        assert ok(client.get("/admin/audit"))["share"] == 0.0
        answer = client.put("/admin/audit", json={"share": 0.1})
        assert answer.status_code == 400
        assert "start with recheck_share above 0" in answer.json()["error"]["message"]


class _Hands:
    """A wall clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_767_225_600_000

    def clock(self) -> Clock:
        return Clock(wall_ms=lambda: self.now_ms)


def test_the_history_tells_of_requests_by_where_their_prompts_came_from(
    serving: Serving, settings: Settings
) -> None:
    hands = _Hands()
    with TestClient(create_app(serving, settings, hands.clock())) as client:
        client.headers["authorization"] = "Bearer operator's"
        admin = client.app.state.admin  # type: ignore[attr-defined]  # starlette's

        def sample() -> None:
            admin.history.add(admin.model.reading(), hands.now_ms)
            hands.now_ms += 5_000

        sample()
        complete(client, PROMPT + " once")
        sample()
        complete(client, PROMPT + " once")
        sample()

        history = ok(client.get("/admin/history"))
        assert (history["span"], history["interval_s"]) == ("hour", 5)
        assert len(history["at"]) == 2 or len(history["at"]) == 3
        told = {(one["name"], one["label"]): one for one in history["series"]}
        assert told["requests", None]["unit"] == "requests"
        assert sum(told["requests", None]["values"]) == 2
        assert max(told["hit_ratio", None]["values"][-2:], key=lambda value: value or 0) > 0.5
        assert told["ttft_p50", "device"]["unit"] == "seconds"
        assert all(len(one["values"]) == len(history["at"]) for one in history["series"])
        assert told["tier_bytes", "disk"]["values"][-1] > 0
        newer = ok(client.get("/admin/history", params={"after": history["at"][-2]}))
        assert newer["at"] == history["at"][-1:]
        assert ok(client.get("/admin/history", params={"span": "day"}))["interval_s"] == 120
        assert client.get("/admin/history", params={"span": "year"}).status_code == 400


def test_a_store_alone_has_a_history_and_no_audit(tmp_path: Path) -> None:
    small = {"host_bytes": "8MiB", "disk_bytes": 0, "cache_path": tmp_path, "port": 0}
    settings = Settings.model_validate(small)
    with (
        closing(open_sidecar(sidecar_config(settings))) as sidecar,
        TestClient(create_store_app(sidecar, settings)) as client,
    ):
        admin = client.app.state.admin  # type: ignore[attr-defined]  # starlette's
        eventually(lambda: admin.history._before is not None)
        sidecar.store.lookup([b"nothing"])
        admin.history.add(store_reading(sidecar.store.statistics()), 1_767_225_600_000)
        told = {one["name"]: one["values"] for one in ok(client.get("/admin/history"))["series"]}
        assert told["block_hit_ratio"] == [0.0]
        assert told["lookup_blocks"] == [1.0]
        answer = client.get("/admin/audit")
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "needs_model")
