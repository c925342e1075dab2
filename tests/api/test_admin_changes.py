"""Changes to blocks over HTTP, and files of them: what is said to happen happens, and is told."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path
from typing import Any

import pytest

from tests.api.admin_rig import BLOCK_BYTES, Rig, admin_rig, by_keys, namespace_of, refused, tiers_of

DAY_S = 86_400.0


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with admin_rig(tmp_path) as rig:
        yield rig


def test_a_dry_run_says_what_happens_then(rig: Rig) -> None:
    keys = rig.keep("acme")
    body = by_keys(keys, tiers=["host"])
    said = rig.ok("acme", "POST", "/admin/evict", json={**body["json"], "dry_run": True})
    assert tiers_of(rig, keys) == [["host", "disk"]] * 3
    assert said["leaves"] == {"host": {"blocks": 3, "bytes": 3 * BLOCK_BYTES}}
    assert {effect["key"] for effect in said["effects"]} == set(keys)
    assert rig.done("acme", "POST", "/admin/evict", **body) == said
    assert tiers_of(rig, keys) == [["disk"]] * 3


def test_blocks_move_and_are_warmed(rig: Rig) -> None:
    keys = rig.keep("acme")
    moved = rig.done("acme", "POST", "/admin/move", **by_keys(keys, source="host", target="disk"))
    assert (moved["leaves"]["host"]["blocks"], moved["reasons"]) == (3, {})
    assert tiers_of(rig, keys) == [["disk"]] * 3
    warmed = rig.done("acme", "POST", "/admin/warm", **by_keys(keys))
    assert (warmed["arrives"]["host"]["blocks"], warmed["computed"]) == (3, 0)
    assert tiers_of(rig, keys) == [["host", "disk"]] * 3


def test_a_tenant_is_told_how_many_blocks_make_room_for_its_own_and_not_which(tmp_path: Path) -> None:
    with admin_rig(tmp_path, host_bytes=3 * BLOCK_BYTES) as rig:
        own = rig.keep("acme")
        others = rig.keep("zeno")
        body = by_keys(own, dry_run=True)
        told = {who: rig.ok(who, "POST", "/admin/warm", **body) for who in ("acme", "operator")}
        assert told["acme"]["evicted"] == told["operator"]["evicted"]
        assert told["acme"]["evicted"]["host"]["blocks"] == 3
        assert {one["key"] for one in told["operator"]["effects"]} == {*own, *others}
        assert {one["key"] for one in told["acme"]["effects"]} == {*own}


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        ("evict", {"tiers": ["tape"]}, "tiers"),
        ("move", {"source": "tape", "target": "disk"}, "source"),
        ("move", {"target": "tape"}, "target"),
        ("move", {"source": "disk", "target": "disk"}, "target"),
        ("warm", {"target": "tape"}, "target"),
        ("pins", {"for_s": 1.0, "tiers": ["tape"]}, "tier"),
    ],
)
def test_a_tier_that_is_not_there_is_refused_at_once(
    rig: Rig, route: str, fields: dict[str, Any], param: str
) -> None:
    body = by_keys(rig.keep("acme"), **fields)
    refused(rig.call("acme", "POST", f"/admin/{route}", **body), 400, None, param)


def test_copies_are_verified(rig: Rig) -> None:
    keys = rig.keep("acme")
    found = rig.done("acme", "POST", "/admin/verify", **by_keys(keys))
    assert (found["num_selected"], found["verified"], found["bad"]) == (3, 6, [])


def test_a_namespace_is_dropped_whole_and_its_bytes_bounded(rig: Rig) -> None:
    keys, digest = rig.keep("acme"), namespace_of("acme").digest.hex()
    bounded = rig.ok(
        "operator", "PUT", f"/admin/namespaces/{digest}/budget", json={"tiers": {"disk": 1 << 20}}
    )
    assert bounded == {"digest": digest, "tiers": {"disk": 1 << 20}}
    (space,) = rig.ok("acme", "GET", "/admin/namespaces")["data"]
    assert (space["digest"], space["label"], space["budget"]) == (digest, "a model", {"disk": 1 << 20})
    assert space["tiers"]["host"] == {"blocks": 3, "bytes": 3 * BLOCK_BYTES}
    freed = rig.ok("operator", "PUT", f"/admin/namespaces/{digest}/budget", json={"tiers": {"disk": None}})
    assert freed["tiers"] == {}
    said = rig.ok("acme", "DELETE", f"/admin/namespaces/{digest}?dry_run=true")
    assert tiers_of(rig, keys) == [["host", "disk"]] * 3
    assert rig.done("acme", "DELETE", f"/admin/namespaces/{digest}") == said
    assert tiers_of(rig, keys) == [[]] * 3


def test_a_tier_drains_and_takes_blocks_again(rig: Rig) -> None:
    keys = rig.keep("acme")
    rig.done("operator", "POST", "/admin/evict", **by_keys(keys, tiers=["disk"]))
    rig.done("operator", "POST", "/admin/tiers/host/drain", json={"target": "disk"})
    assert tiers_of(rig, keys) == [["disk"]] * 3
    assert [tier["is_draining"] for tier in rig.ok("acme", "GET", "/admin/tiers")["data"]] == [True, False]
    assert tiers_of(rig, rig.keep("zeno")) == [["disk"]] * 3
    assert rig.ok("operator", "DELETE", "/admin/tiers/host/drain") == {"draining": []}
    assert tiers_of(rig, rig.keep("zeno", 1000)) == [["host", "disk"]] * 3
    refused(rig.call("operator", "POST", "/admin/tiers/tape/drain", json={}), 404, "not_found")


def test_clearing_a_tier_leaves_the_others(rig: Rig) -> None:
    keys = rig.keep("acme")
    assert rig.done("operator", "POST", "/admin/clear", json={"tier": "host"}) == {"blocks": 3}
    assert tiers_of(rig, keys) == [["disk"]] * 3
    assert rig.done("operator", "POST", "/admin/clear", json={}) == {"blocks": 3}
    assert rig.ok("operator", "GET", "/admin/blocks")["total"] == 0


def test_a_prefix_goes_through_a_file_that_others_can_read(rig: Rig) -> None:
    keys = rig.keep("acme")
    answer = rig.call("acme", "POST", "/admin/export", **by_keys(keys))
    assert answer.headers["content-type"] == "application/octet-stream"
    assert (answer.headers["x-prefixd-blocks"], answer.headers["x-prefixd-left-out"]) == ("3", "0")
    header = json.loads(answer.content[8 : 8 + struct.unpack("<Q", answer.content[:8])[0]])
    assert len(header.keys() - {"__metadata__"}) == 3
    before = rig.ok("acme", "GET", "/admin/blocks")["data"]
    rig.done("operator", "POST", "/admin/clear", json={})
    taken = rig.done("operator", "POST", "/admin/import", content=answer.content)
    assert (taken["num_selected"], taken["stored"], taken["stays"]) == (3, 3, [])
    assert [block["key"] for block in rig.ok("acme", "GET", "/admin/blocks")["data"]] == [
        block["key"] for block in before
    ]
    assert rig.done("acme", "POST", "/admin/verify", **by_keys(keys))["bad"] == []


def test_blocks_that_are_nowhere_make_no_file(rig: Rig) -> None:
    others = rig.keep("zeno")
    for keys in (others, ["0f" * 16]):
        refused(rig.call("acme", "POST", "/admin/export", **by_keys(keys)), 400, None, "selection")


def test_what_is_no_exported_file_is_refused_and_nothing_is_left_of_it(rig: Rig) -> None:
    for content in (b"", b"no file", bytes(1000)):
        job = rig.ok("operator", "POST", "/admin/import", content=content)
        ended = rig.ended("operator", job["id"])
        assert ended["state"] == "failed", ended
        assert "server failed" not in ended["error"]
    assert {file.name for file in rig.folder.iterdir()} <= {
        "audit.jsonl", "blocks", "rules.toml", "store.sock", "tokens.toml",
    }  # fmt: skip


def test_a_file_that_cannot_be_written_is_said_to_be(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise OSError(ENOSPC, "No space left on device")

    keys = rig.keep("acme")
    monkeypatch.setattr("api.admin.transfer_routes.TemporaryFile", fail)
    refused(rig.call("acme", "POST", "/admin/export", **by_keys(keys)), 503, "medium_failed")
    refused(rig.call("operator", "POST", "/admin/import", content=b"one"), 503, "medium_failed")


def test_an_import_has_a_bound_of_its_own(tmp_path: Path) -> None:
    with admin_rig(tmp_path, max_body_bytes=2048, max_import_bytes=8192) as rig:
        longer, too_long = bytes(4096), bytes(8193)
        rig.ok("operator", "POST", "/admin/import", content=longer)
        refused(rig.call("operator", "POST", "/admin/import", content=too_long), 413, "request_too_large")
        pieces = (too_long[start : start + 1000] for start in range(0, len(too_long), 1000))
        refused(rig.call("operator", "POST", "/admin/import", content=pieces), 413, "request_too_large")
        refused(rig.call("operator", "POST", "/admin/resolve", content=longer), 413, "request_too_large")


def test_the_same_key_with_another_file_is_another_request(rig: Rig) -> None:
    named = {"headers": {"Idempotency-Key": "monday"}}
    first = rig.ok("operator", "POST", "/admin/import", content=b"one", **named)
    assert rig.ok("operator", "POST", "/admin/import", content=b"one", **named)["id"] == first["id"]
    refused(rig.call("operator", "POST", "/admin/import", content=b"two", **named), 409, "conflict")


def test_jobs_of_another_tenant_may_have_the_same_key(rig: Rig) -> None:
    named = {"headers": {"Idempotency-Key": "monday"}}
    ids = {
        who: rig.ok(who, "POST", "/admin/verify", **by_keys(rig.keep(who)), **named)["id"]
        for who in ("acme", "zeno")
    }
    assert ids["acme"] != ids["zeno"]
