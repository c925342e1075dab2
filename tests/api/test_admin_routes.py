"""The administration of a store over HTTP: each operation does what it says, and tells it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.health import HealthAnswer, Readiness
from kvstore.namespace import salt_digest, tenant_digest
from tests.api.admin_rig import BLOCK_BYTES, SALT, Rig, admin_rig, by_keys, namespace_of, refused

DAY_S = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with admin_rig(tmp_path) as rig:
        yield rig


def test_the_whole_is_told_in_a_few_numbers_to_each_what_is_its_own(rig: Rig) -> None:
    rig.keep("acme")
    rig.keep("zeno", num_blocks=2)
    whole = rig.ok("operator", "GET", "/admin/overview")
    assert [(tier["name"], tier["blocks"], tier["budget_bytes"]) for tier in whole["tiers"]] == [
        ("host", 5, 1 << 20),
        ("disk", 5, 4 << 20),
    ]
    assert (whole["namespaces"], whole["has_model"], whole["mode"]) == (2, False, None)
    assert whole["tiers"][0] == {
        **whole["tiers"][0], "state": "ok", "reason": "", "is_draining": False, "policy": "lru",
    }  # fmt: skip
    own = rig.ok("zeno", "GET", "/admin/overview")
    assert (own["tiers"][0]["blocks"], own["tiers"][0]["bytes"]) == (2, 2 * BLOCK_BYTES)
    assert own["namespaces"] == 1


def test_clients_are_counted(rig: Rig) -> None:
    for name in ("one", "two"):
        rig.ok("acme", "GET", "/store", headers={"X-Prefixd-Client": name})
    assert rig.ok("operator", "GET", "/admin/overview")["clients"] == 2
    assert rig.ok("acme", "GET", "/admin/overview")["clients"] == 0


def test_pages_of_blocks_hold_each_once(rig: Rig) -> None:
    keys = {*rig.keep("acme", num_blocks=5), *rig.keep("zeno", num_blocks=4)}
    found: list[str] = []
    query = ""
    while True:
        page = rig.ok("operator", "GET", f"/admin/blocks?limit=4{query}")
        found += [block["key"] for block in page["data"]]
        assert page["total"] == 9
        if page["next_cursor"] is None:
            break
        query = f"&cursor={page['next_cursor']}"
    assert found == sorted(keys)
    for route in ("namespaces", "prefixes"):
        first = rig.ok("operator", "GET", f"/admin/{route}?limit=1")
        rest = rig.ok("operator", "GET", f"/admin/{route}?limit=1&cursor={first['next_cursor']}")
        assert (first["total"], rest["next_cursor"]) == (2, None)
        assert first["data"] != rest["data"]


@pytest.mark.parametrize(
    ("query", "num_found"),
    [
        ("", 5),
        (f"tenant={tenant_digest('acme')}", 3),
        ("tenant=unsalted", 2),
        ("model=a%20model", 5),
        ("model=weig", 5),
        ("model=another", 0),
        (f"namespace={namespace_of('acme').digest.hex()}", 3),
        ("tier=disk", 5),
        ("min_age_s=3600", 0),
        ("max_age_s=3600", 5),
        ("min_idle_s=3600", 0),
        ("max_idle_s=3600", 5),
        ("pinned=true", 0),
        ("pinned=false", 5),
    ],
)
def test_blocks_are_found_by_what_they_have_in_common(rig: Rig, query: str, num_found: int) -> None:
    rig.keep("acme")
    rig.keep("", num_blocks=2)
    assert rig.ok("operator", "GET", f"/admin/blocks?{query}")["total"] == num_found


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"), ("limit=1001", "limit"), ("cursor=x", "cursor"), ("min_age_s=-1", "min_age_s"),
        ("tenant=acme", "tenant"), ("tier=tape", "tier"), ("colour=red", "colour"), ("prefix=0", "prefix"),
    ],
)  # fmt: skip
def test_a_query_that_makes_no_sense_names_its_field(rig: Rig, query: str, param: str) -> None:
    refused(rig.call("operator", "GET", f"/admin/blocks?{query}"), 400, None, param)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("blocks/xyz", "key: must be hexadecimal, whole and in lower case"),
        ("jobs/none", "id: must be hexadecimal, whole and in lower case"),
        ("blocks?tenant=0f", "tenant: must be hexadecimal, whole and in lower case or 'unsalted'"),
    ],
)
def test_what_is_no_key_or_digest_is_refused_in_words(rig: Rig, path: str, message: str) -> None:
    answer = rig.call("operator", "GET", f"/admin/{path}")
    assert answer.json()["error"]["message"] == message


def test_one_block_tells_all_about_it(rig: Rig) -> None:
    first, second, _ = rig.keep("acme")
    block = rig.ok("acme", "GET", f"/admin/blocks/{second}")
    assert (block["parent"], block["tiers"], block["bytes"]) == (first, ["host", "disk"], BLOCK_BYTES)
    assert block["tenant"] == tenant_digest("acme")
    assert abs(block["created_at"] - time.time()) < 60
    assert abs(block["ends_at"]["disk"] - time.time() - DAY_S) < 60
    assert (block["hard_ends_at"], block["pinned_until"], block["num_hits"]) == (None, {}, 0)
    refused(rig.call("acme", "GET", f"/admin/blocks/{'0f' * 16}"), 404, "not_found")


def test_prefixes_tell_what_they_are_made_of(rig: Rig) -> None:
    keys = rig.keep("acme")
    (prefix,) = rig.ok("operator", "GET", "/admin/prefixes?by=bytes")["data"]
    assert (prefix["key"], prefix["blocks"], prefix["tokens"]) == (keys[-1], 3, 48)
    assert prefix["tiers"] == {"host": 3, "disk": 3}


def test_a_pin_holds_and_ends(rig: Rig) -> None:
    keys = rig.keep("acme")
    body = by_keys(keys[:2], for_s=600.0, tiers=["disk"])
    pinned = rig.ok("acme", "POST", "/admin/pins", **body)
    assert (pinned["tenant"], pinned["blocks"], pinned["absent"]) == (tenant_digest("acme"), {"disk": 2}, [])
    assert abs(pinned["until"] - time.time() - 600) < 60
    (pin,) = rig.ok("acme", "GET", "/admin/pins")["data"]
    assert (pin["tier"], pin["blocks"], pin["bytes"]) == ("disk", 2, pinned["charged_bytes"])
    stays = rig.ok("acme", "POST", "/admin/evict", **by_keys(keys, dry_run=True))["reasons"]
    assert stays["pinned"]["blocks"] == 2
    assert rig.ok("acme", "POST", "/admin/unpin", **by_keys(keys)) == {"blocks": 2}
    assert rig.ok("acme", "GET", "/admin/pins")["data"] == []


def test_pins_have_their_bounds(rig: Rig) -> None:
    keys = rig.keep("acme")
    refused(rig.call("acme", "POST", "/admin/pins", **by_keys(keys)), 400, None, "for_s")
    over = by_keys(keys, until_s=1.0)
    refused(rig.call("acme", "POST", "/admin/pins", **over), 400, None, "until_s")
    refused(rig.call("acme", "POST", "/admin/pins", **by_keys(["0f" * 16], for_s=1.0)), 404, "not_found")
    rig.ok("operator", "PUT", "/admin/quotas/others", json={"pin_bytes": BLOCK_BYTES})
    told = refused(
        rig.call("acme", "POST", "/admin/pins", **by_keys(keys, for_s=1.0)), 409, "pin_budget_exceeded"
    )
    assert "pin budget" in told


def test_blocks_that_are_nowhere_are_told_when_others_are_pinned(rig: Rig) -> None:
    keys = rig.keep("acme")
    answer = rig.ok("acme", "POST", "/admin/pins", **by_keys([keys[0], "0f" * 16], for_s=60.0))
    assert answer["absent"] == ["0f" * 16]


def test_blocks_end_when_they_are_told_to(rig: Rig) -> None:
    keys = rig.keep("acme")
    answer = rig.ok("acme", "POST", "/admin/ttl", **by_keys([*keys, "0f" * 16], ttl_s=60.0, hard_ttl_s=600.0))
    assert answer == {"blocks": 3, "absent": ["0f" * 16]}
    block = rig.ok("acme", "GET", f"/admin/blocks/{keys[0]}")
    assert abs(block["ends_at"]["host"] - time.time() - 60) < 30
    assert abs(block["hard_ends_at"] - time.time() - 600) < 60
    refused(rig.call("acme", "POST", "/admin/ttl", **by_keys(keys)), 400, None)


def test_quotas_are_set_and_told_with_what_is_used(rig: Rig) -> None:
    rig.keep("acme")
    digest = tenant_digest("acme")
    told = rig.ok("operator", "PUT", f"/admin/quotas/{digest}", json={"tiers": {"host": 1 << 16}})
    assert told["tiers"] == {"host": {"quota_bytes": 1 << 16, "used_bytes": 3 * BLOCK_BYTES, "blocks": 3}}
    assert told["pin_bytes"] == 1 << 20  # as for others before
    own = rig.ok("acme", "GET", "/admin/quotas")["data"]
    assert own == [told]
    more = rig.ok("operator", "PUT", f"/admin/quotas/{digest}", json={"tiers": {"disk": 1 << 17}})["tiers"]
    assert {tier: quota["quota_bytes"] for tier, quota in more.items()} == {"host": 1 << 16, "disk": 1 << 17}
    everybody = {quota["tenant"] for quota in rig.ok("operator", "GET", "/admin/quotas")["data"]}
    assert everybody == {"others", digest, salt_digest(SALT)}
    rig.ok("operator", "PUT", "/admin/quotas/unsalted", json={"tiers": {"disk": 1}})
    refused(
        rig.call("operator", "PUT", "/admin/quotas/others", json={"tiers": {"tape": 1}}), 400, None, "quotas"
    )


@pytest.mark.parametrize(
    "selection",
    [
        {}, {"keys": []}, {"keys": ["0F"]}, {"keys": ["0f"], "filter": {}}, {"colour": "red"},
        {"filter": {"limit": 1}}, 7,
    ],
)  # fmt: skip
def test_a_selection_that_names_nothing_is_refused(rig: Rig, selection: Any) -> None:
    answer = rig.call("operator", "POST", "/admin/verify", json={"selection": selection})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("selection")


def test_a_store_alone_says_what_needs_a_model(rig: Rig) -> None:
    for body in ({"prompt": "a"}, {"prompt": [1, 2]}, {"messages": [{"role": "user", "content": "a"}]}):
        refused(rig.call("operator", "POST", "/admin/resolve", json={"selection": body}), 400, "needs_model")
    refused(rig.call("operator", "POST", "/admin/clear", json={"tier": "device"}), 400, "needs_model")


def test_ready_is_told_from_the_start_to_the_end(rig: Rig) -> None:
    assert rig.call(None, "GET", "/ready").json() == {"status": "ready"}
    rig.app.state.readiness.is_draining = True
    answer = rig.call(None, "GET", "/ready")
    assert (answer.status_code, answer.json()) == (503, {"status": "draining"})
    assert rig.call(None, "GET", "/health").status_code == 200
    readiness = Readiness()
    assert readiness.answer(HealthAnswer(200, {})) == HealthAnswer(503, {"status": "starting"})
    readiness.is_started = True
    assert readiness.answer(HealthAnswer(503, {})) == HealthAnswer(503, {"status": "unhealthy"})


def test_a_route_that_takes_other_methods_names_them_all(rig: Rig) -> None:
    answer = rig.call("operator", "PATCH", "/admin/tiers/disk/drain")
    refused(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, POST"
