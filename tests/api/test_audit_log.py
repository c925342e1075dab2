"""What was done to a service: in memory, in a file, and without anything that is nobody's business."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from api.admin.audit_log import AuditLog
from kvstore.clock import Clock
from kvstore.errors import ConfigError
from tests.api.admin_rig import Rig, admin_rig


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def add(log: AuditLog, number: int) -> None:
    log.add("alice", None, "POST /admin/evict", {"num_keys": number}, "done")


def test_entries_are_kept_in_memory_up_to_a_bound_and_all_of_them_in_the_file(tmp_path: Path) -> None:
    log = AuditLog(Clock(), tmp_path / "audit.jsonl")
    for number in range(1200):
        add(log, number)
    assert [entry.on["num_keys"] for entry in log.entries()] == list(range(1199, 199, -1))
    log.close()
    assert [line["on"]["num_keys"] for line in lines_of(tmp_path / "audit.jsonl")] == list(range(1200))


def test_the_file_is_its_owners_alone_and_only_ever_added_to(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_text('{"who": "somebody before"}\n')
    file.chmod(0o644)
    log = AuditLog(Clock(), file)
    add(log, 1)
    log.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [line["who"] for line in lines_of(file)] == ["somebody before", "alice"]


def test_a_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="audit_log: cannot write"):
        AuditLog(Clock(), tmp_path / "nowhere" / "audit.jsonl")


def test_a_file_that_fails_later_is_told_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    log = AuditLog(Clock(), tmp_path / "audit.jsonl")
    monkeypatch.setattr(os, "write", full)
    add(log, 1)
    log.close()
    assert "the audit log cannot be written: No space left on device" in caplog.text
    assert len(log.entries()) == 1


@pytest.fixture
def rig(tmp_path: Path) -> Any:
    with admin_rig(tmp_path) as rig:
        yield rig


def log_of(rig: Rig) -> list[tuple[str, str, str]]:
    """Return who did what, and what came of it, in order."""
    entries = rig.ok("operator", "GET", "/admin/log")["data"]
    return [(entry["who"], entry["action"], entry["outcome"]) for entry in reversed(entries)]


def test_what_was_done_is_noted_with_the_name_of_the_token(rig: Rig) -> None:
    keys = rig.keep("acme")
    rig.ok("acme", "POST", "/admin/pins", json={"selection": {"keys": keys}, "for_s": 60.0})
    rig.ok("operator", "PUT", "/admin/quotas/others", json={"tiers": {"disk": 1 << 20}})
    assert log_of(rig) == [
        ("acme", "POST /admin/pins", "done"),
        ("api_token", "PUT /admin/quotas/{tenant}", "done"),
    ]
    told = rig.ok("operator", "GET", "/admin/log")["data"]
    assert told[1]["on"] == {"keys": keys, "num_keys": 3, "for_s": 60.0}
    assert told[0]["on"] == {"tenant": "others", "tiers": {"disk": 1 << 20}}


def test_what_was_tried_is_noted_as_well(rig: Rig) -> None:
    rig.call("looker", "POST", "/admin/clear", json={})
    rig.call("acme", "POST", "/admin/clear", json={})
    rig.call("operator", "POST", "/admin/clear", json={"tier": "tape"})
    rig.call("operator", "POST", "/admin/clear", json={"teir": "disk"})
    rig.call("zeno", "DELETE", f"/admin/namespaces/{'0f' * 16}")
    assert log_of(rig) == [
        ("looker", "POST /admin/clear", "refused: not_allowed"),
        ("acme", "POST /admin/clear", "refused: not_allowed"),
        ("api_token", "POST /admin/clear", "refused: 400"),
        ("api_token", "POST /admin/clear", "refused: 400"),
        ("zeno", "DELETE /admin/namespaces/{digest}", "refused: not_found"),
    ]


def test_a_job_is_noted_when_it_begins_and_when_it_ends_and_a_dry_run_not_at_all(rig: Rig) -> None:
    body = {"selection": {"keys": rig.keep("acme")}}
    rig.ok("acme", "POST", "/admin/evict", json={**body, "dry_run": True})
    rig.done("acme", "POST", "/admin/evict", json=body)
    assert log_of(rig) == [
        ("acme", "POST /admin/evict", "begun"),
        ("acme", "POST /admin/evict", "done"),
    ]
    first, second = rig.ok("operator", "GET", "/admin/log")["data"]
    assert first["job"] == second["job"] is not None


def test_a_repeated_request_is_noted_once(rig: Rig) -> None:
    more = {"json": {"tier": "disk"}, "headers": {"Idempotency-Key": "monday"}}
    first = rig.ok("operator", "POST", "/admin/clear", **more)
    assert rig.ok("operator", "POST", "/admin/clear", **more)["id"] == first["id"]
    assert [outcome for *_, outcome in log_of(rig)][:1] == ["begun"]
    assert [outcome for *_, outcome in log_of(rig)].count("begun") == 1


def test_the_file_holds_what_is_listed(rig: Rig) -> None:
    rig.done("operator", "POST", "/admin/clear", json={})
    listed = rig.ok("operator", "GET", "/admin/log")["data"]
    file = rig.folder / "audit.jsonl"
    written = lines_of(file)
    assert written == list(reversed(listed))[: len(written)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
