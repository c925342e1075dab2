"""What the cache decided and why, over HTTP, and the switch of how far it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from backends.device import DevicePool
from engine_adapter.assemble import Serving, assemble
from kvstore.keys import chain_keys

MODEL = "tiny-llama"
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(reload_policy="always-load")


@pytest.fixture
def fresh(serving: Serving, client: TestClient) -> Iterator[TestClient]:
    """Return a client of a server that holds no block."""
    serving.engine.flush()
    serving.engine.clear_pool()
    serving.store.clear()
    yield client
    client.put("/admin/mode", json={"mode": "serve"})


def complete(client: TestClient, **fields: Any) -> Any:
    body = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 2, "ignore_eos": True, **fields}
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def store(serving: Serving, client: TestClient, **fields: Any) -> None:
    """Leave a prompt's blocks below the device alone."""
    complete(client, **fields)
    assert serving.engine.flush()
    serving.engine.clear_pool()


def ok(response: Any) -> Any:
    assert response.status_code == 200, response.text
    return response.json()


def refused(response: Any, param: str | None, status: int = 400) -> str:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    return str(error["message"])


def metrics(client: TestClient) -> dict[str, float]:
    lines = client.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}


def test_an_answer_carries_its_plan(fresh: TestClient, serving: Serving) -> None:
    assert complete(fresh)["kv"]["plan"] is None
    serving.engine.flush()
    serving.engine.clear_pool()
    kv = complete(fresh)["kv"]
    plan = kv["plan"]
    assert (plan["policy"], plan["mode"], plan["chosen"]) == ("always-load", "serve", "load")
    assert plan["reason"] == "every block that a tier has is loaded"
    assert plan["tokens_by_tier"] == {"host": kv["tokens_by_source"]["host"]}
    assert plan["num_plans"] >= 1
    assert min(plan["predicted_ttft_s"], plan["if_computed_s"], plan["if_loaded_s"], plan["actual_s"]) > 0
    assert plan["actual_s"] <= kv["ttft_s"]


def test_a_stream_carries_it_too(fresh: TestClient, serving: Serving) -> None:
    store(serving, fresh)
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "stream": True}
    text = fresh.post("/v1/completions", json=body).text
    assert '"plan":{"policy":"always-load"' in text.replace(" ", "")


def test_recent_plans_come_latest_first_and_as_many_as_asked(fresh: TestClient, serving: Serving) -> None:
    store(serving, fresh)
    complete(fresh)
    listed = ok(fresh.get("/admin/plans", params={"limit": 2}))
    second, first = listed["data"]
    assert second["number"] == first["number"] + 1
    assert (first["plan"], first["miss"]["cause"]) == (None, "cleared")
    assert first["reason"].startswith("nothing to load: block 0, from token 0 on, was removed by somebody")
    assert second["plan"]["tokens_by_tier"]["host"] > 0
    assert second["reason"] == second["plan"]["reason"]
    assert (second["namespace"], second["mode"], second["ended"]) == (MODEL, "serve", "length")


@pytest.mark.parametrize("limit", ["0", "1001", "many"])
def test_a_limit_that_is_out_of_range_is_refused(client: TestClient, limit: str) -> None:
    refused(client.get("/admin/plans", params={"limit": limit}), "limit")


def test_a_prompt_is_explained_without_being_run(fresh: TestClient, serving: Serving) -> None:
    store(serving, fresh)
    before = ok(fresh.get("/admin/plans"))
    explained = ok(fresh.post("/admin/explain", json={"prompt": PROMPT}))
    num_blocks = explained["prompt_tokens"] // explained["block_tokens"]
    whole = {"first_block": 0, "num_blocks": num_blocks, "tier": "host", "choice": "load"}
    assert explained["blocks"] == [whole]
    assert explained["plan"]["tokens_by_tier"] == {"host": num_blocks * explained["block_tokens"]}
    assert explained["plan"]["policy"] == "always-load"
    assert explained["plan"]["if_computed_s"] > 0
    assert explained["costs"]["host"]["bytes_per_s"] > 0
    assert explained["miss"] is None
    assert ok(fresh.get("/admin/plans")) == before


def test_a_prompt_of_which_a_part_is_there(fresh: TestClient, serving: Serving) -> None:
    store(serving, fresh)
    keys = keys_of(serving)
    serving.store.evict(keys[1:2])
    explained = ok(fresh.post("/admin/explain", json={"prompt": PROMPT}))
    assert [(run["num_blocks"], run["choice"]) for run in explained["blocks"]] == [
        (1, "load"),
        (1, "compute"),
        (len(keys) - 2, "load"),
    ]
    assert (explained["miss"]["block"], explained["miss"]["cause"]) == (1, "cleared")


def test_what_the_device_has_is_shared(fresh: TestClient) -> None:
    complete(fresh)
    explained = ok(fresh.post("/admin/explain", json={"prompt": PROMPT}))
    assert [(run["tier"], run["choice"]) for run in explained["blocks"]] == [("device", "share")]
    off = ok(fresh.post("/admin/explain", json={"prompt": PROMPT, "mode": "off"}))
    assert [run["choice"] for run in off["blocks"]] == ["compute"]


def test_a_chat_and_token_ids_are_explained_as_they_are_served(fresh: TestClient, serving: Serving) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 2}
    usage = ok(fresh.post("/v1/chat/completions", json=body))["usage"]
    explained = ok(fresh.post("/admin/explain", json={"messages": messages}))
    assert explained["prompt_tokens"] == usage["prompt_tokens"]
    assert explained["miss"] is None
    ids = serving.tokenizer.encode(PROMPT)
    assert ok(fresh.post("/admin/explain", json={"prompt": ids}))["prompt_tokens"] == len(ids)


def test_case_19_a_prompt_is_explained_for_the_tenant_of_its_salt_alone(
    fresh: TestClient, serving: Serving
) -> None:
    store(serving, fresh, cache_salt="a")
    for salt, is_there in (("a", True), ("b", False), (None, False)):
        explained = ok(fresh.post("/admin/explain", json={"prompt": PROMPT, "cache_salt": salt}))
        assert (explained["miss"] is None) is is_there
        if not is_there:
            assert explained["miss"]["differences"] == []


def test_another_namespace_of_the_same_tenant_is_named(fresh: TestClient, serving: Serving) -> None:
    other = replace(serving.model_facts.namespace, kv_dtype="bfloat16")
    prompt = "only there: " + PROMPT
    tokens, parent = serving.tokenizer.encode(prompt), b""
    for key in chain_keys(other.digest, tokens, other.block_tokens):
        assert serving.store.put(other, key, parent, memoryview(bytes(1024)))
        parent = key
    miss = ok(fresh.post("/admin/explain", json={"prompt": prompt}))["miss"]
    assert miss["cause"] == "other namespace"
    assert miss["differences"] == [{"field": "kv_dtype", "here": "float32", "there": "bfloat16"}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "prompt"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": "x" * 100_000}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "messages[0].tool_calls"),
        ({"prompt": "a", "cache_salt": "x" * 5000}, "cache_salt"),
        ({"prompt": "a", "mode": "maybe"}, "mode"),
        ({"prompt": "a", "model": 5}, "model"),
    ],
)
def test_what_cannot_be_explained_is_refused_with_its_field(
    client: TestClient, body: dict[str, Any], param: str
) -> None:
    refused(client.post("/admin/explain", json=body), param)


def test_the_mode_is_switched_while_running(fresh: TestClient, serving: Serving) -> None:
    store(serving, fresh)
    assert ok(fresh.get("/admin/mode")) == {"mode": "serve"}
    assert ok(fresh.put("/admin/mode", json={"mode": "observe"})) == {"mode": "observe"}
    assert ok(fresh.get("/admin/mode")) == {"mode": "observe"}
    kv = complete(fresh)["kv"]
    assert "host" not in kv["tokens_by_source"]
    assert (kv["plan"]["mode"], kv["plan"]["tokens_by_tier"]["host"] > 0) == ("observe", True)
    assert metrics(fresh)['prefixd_mode{mode="observe"}'] == 1
    assert metrics(fresh)['prefixd_mode{mode="serve"}'] == 0


@pytest.mark.parametrize("body", [{}, {"mode": "on"}, {"mode": 1}, {"mode": "off", "for": "me"}])
def test_a_mode_that_is_none_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    before = ok(client.get("/admin/mode"))
    refused(client.put("/admin/mode", json=body), "for" if "for" in body else "mode")
    assert ok(client.get("/admin/mode")) == before


def test_a_request_names_its_own_mode(fresh: TestClient, serving: Serving) -> None:
    store(serving, fresh)
    assert "host" not in complete(fresh, kv={"mode": "observe"})["kv"]["tokens_by_source"]
    serving.engine.clear_pool()
    assert complete(fresh, kv={"mode": "off"})["kv"]["plan"] is None
    assert complete(fresh, kv={"mode": "serve"})["kv"]["tokens_by_source"]["host"] > 0
    body = {"model": MODEL, "prompt": "a", "kv": {"mode": "on"}}
    refused(fresh.post("/v1/completions", json=body), "kv.mode")


def test_predictions_and_what_came_of_them_are_metrics(fresh: TestClient, serving: Serving) -> None:
    before = metrics(fresh)
    store(serving, fresh)
    complete(fresh)
    after = metrics(fresh)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('prefixd_plans_total{chosen="load"}') == 1
    for name in ("plan_predicted_seconds", "plan_actual_seconds", "plan_actual_over_predicted"):
        assert grown(f"prefixd_{name}_count") == 1
        assert grown(f"prefixd_{name}_sum") > 0
    assert grown("prefixd_saved_seconds") != 0
    assert grown("prefixd_slower_requests_total") in {0, 1}
    assert after["prefixd_prefill_tokens_per_second"] > 0
    assert after['prefixd_tier_load_bytes_per_second{tier="host"}'] > 0
    assert after['prefixd_tier_load_latency_seconds{tier="disk"}'] > 0


def test_a_wrong_block_that_verifying_finds_is_counted_and_degrades_health(
    make_settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_settings(reload_policy="always-load", mode="verify", verify_share=1.0, disk_bytes=0)
    with (
        closing(assemble(serving_config(settings))) as serving,
        TestClient(create_app(serving, settings)) as client,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(DevicePool, "read_block", _shifted(DevicePool.read_block))
            store(serving, client)
        kv = complete(client)["kv"]
        assert "host" not in kv["tokens_by_source"]
        assert kv["plan"]["mode"] == "verify"
        counted = metrics(client)
        assert counted["prefixd_verified_blocks_total"] == counted["prefixd_wrong_blocks_total"] > 0
        health = client.get("/health")
        assert (health.status_code, health.json()["status"]) == (200, "degraded")
        assert "are in quarantine" in health.json()["reasons"]["store"]
        serving.engine.clear_pool()
        miss = ok(client.post("/admin/explain", json={"prompt": PROMPT}))["miss"]
        assert miss["cause"] == "quarantined"


def _shifted(read_block: Any) -> Any:
    def read(pool: DevicePool, block: int, out: memoryview) -> Any:
        copy = read_block(pool, block, out)
        out[:4] = b"\x00\x00\x00\x7f"
        return copy

    return read


def test_case_20_the_routes_ask_for_the_token(
    make_settings: Callable[..., Settings], serving: Serving
) -> None:
    app = create_app(serving, make_settings(api_token="s3cret"))
    with TestClient(app) as client:
        for method, path in (
            ("GET", "/admin/plans"),
            ("POST", "/admin/explain"),
            ("GET", "/admin/mode"),
            ("PUT", "/admin/mode"),
        ):
            refused(client.request(method, path), None, 401)
        assert ok(client.get("/admin/mode", headers={"Authorization": "Bearer s3cret"}))


def keys_of(serving: Serving) -> list[bytes]:
    namespace = serving.model_facts.namespace
    return chain_keys(namespace.digest, serving.tokenizer.encode(PROMPT), namespace.block_tokens)
