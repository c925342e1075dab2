"""``prefixd admin``: looking at a store, and changing what it keeps."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.namespace import tenant_digest
from tests.api.admin_command import NEW, OLD, TOKEN, Commanded, admin_told, commanded, one_line


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Commanded]:
    with commanded(tmp_path) as server:
        yield server


def test_the_whole_is_shown_in_a_few_numbers(server: Commanded) -> None:
    server.keep(OLD)
    shown = server.shown("overview")
    assert "mode        no model is served" in shown
    assert [line.split()[:4] for line in shown.splitlines() if line.startswith(("host", "disk"))] == [
        ["host", "4", "16", "KiB"],
        ["disk", "4", "32", "KiB"],
    ]
    assert server.answered("overview")["namespaces"] == 1
    assert server.shown("tiers").splitlines()[1].startswith("host")


def test_blocks_are_listed_by_what_they_have_in_common(server: Commanded) -> None:
    old, new = server.keep(OLD), server.keep(NEW)
    assert {block["key"] for block in server.answered("blocks")["data"]} == {*old, *new}
    assert {block["key"] for block in server.answered("blocks", "--model", "old-model")["data"]} == set(old)
    assert server.answered("blocks", "--older-than", "1h")["total"] == 0
    assert server.answered("blocks", "--used-within", "1h", "--in-tier", "disk", "--not-pinned")["total"] == 8
    assert server.shown("blocks", "--tenant", "@acme") == "no such blocks\n"
    after_two = {block["key"] for block in server.answered("blocks", "--prefix", old[2])["data"]}
    assert after_two == {old[2], old[3]}
    shown = server.shown("blocks", "--limit", "3")
    assert shown.splitlines()[-1] == "3 of 8; --limit 0 shows all"


def test_long_lists_are_fetched_page_after_page(server: Commanded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.client.server._PAGE", 3)
    keys = {*server.keep(OLD), *server.keep(NEW)}
    everything = server.answered("blocks", "--limit", "0")
    assert ({block["key"] for block in everything["data"]}, everything["next_cursor"]) == (keys, None)
    assert len(server.answered("blocks", "--limit", "5")["data"]) == 5


def test_one_block_prefixes_and_namespaces_are_shown(server: Commanded) -> None:
    keys = server.keep(OLD)
    assert f"follows        {keys[0]}" in server.shown("block", keys[1])
    assert f"{keys[-1]}  {OLD.digest.hex()[:12]}  unsalted      64       4  16 KiB" in server.shown(
        "prefixes"
    )
    assert server.answered("prefixes", "--by", "recent")["data"][0]["blocks"] == 4
    namespaces = server.shown("namespaces")
    assert f"{OLD.digest.hex()}  old-model  unsalted" in namespaces
    assert "host 4 blocks, 16 KiB" in namespaces


def test_keys_are_resolved_also_from_stdin(server: Commanded) -> None:
    keys, absent = server.keep(OLD), "ab" * 16
    shown = server.shown("resolve", *keys, absent)
    assert shown.startswith("4 of 5 whole blocks are there\n")
    assert shown.splitlines()[-1].split()[-1] == "nowhere"
    piped = admin_told("\n".join(keys), "resolve", "-", PREFIXD_URL=server.url, PREFIXD_TOKEN=TOKEN)
    assert piped.stdout.startswith("4 of 4 ")


def test_a_dry_run_says_what_would_go_and_nothing_goes(server: Commanded) -> None:
    keys = server.keep(OLD)
    shown = server.shown("evict", "--all", "--tier", "host", "--dry-run")
    assert shown.split("\n")[1].strip() == "would leave  host 4 blocks, 16 KiB"
    assert server.answered("evict", *keys[2:], "--dry-run")["leaves"]["disk"]["blocks"] == 2
    assert server.tiers_of(keys) == [["host", "disk"]] * 4


def test_what_removes_is_asked_about_where_nobody_says_yes(server: Commanded) -> None:
    keys = server.keep(OLD)
    for command in (
        ("evict", "--all"),
        ("drop", OLD.digest.hex()),
        ("clear",),
        ("move", "--all", "--to", "disk"),
    ):
        asked = server.run(*command)
        assert asked.exit_code == 2, asked.output
        assert asked.stdout == ""
        assert asked.stderr.endswith("? Nothing was done; give --yes to have it done without being asked\n")
        assert "host" in asked.stderr
    assert server.tiers_of(keys) == [["host", "disk"]] * 4


def test_blocks_are_evicted_warmed_and_moved(server: Commanded) -> None:
    keys = server.keep(OLD)
    shown = server.shown("evict", *keys, "--tier", "host", "--yes")
    assert shown.startswith("evict: done (4 of 4, 100 %")
    assert server.tiers_of(keys) == [["disk"]] * 4
    warmed = server.answered("warm", "--model", "old-model", "--to", "host")
    assert (warmed["state"], warmed["result"]["arrives"]["host"]["blocks"]) == ("done", 4)
    assert server.answered("warm", "--all", "--dry-run")["arrives"] == {}
    moved = server.answered("move", *keys[:2], "--from", "host", "--to", "disk", "--yes")
    assert moved["state"] == "done"
    assert server.tiers_of(keys)[0] == ["disk"]


def test_an_old_models_namespace_is_dropped(server: Commanded) -> None:
    old, new = server.keep(OLD), server.keep(NEW)
    assert "would leave" in server.shown("drop", OLD.digest.hex(), "--dry-run")
    server.shown("drop", OLD.digest.hex(), "--yes")
    assert server.tiers_of(old) == [[]] * 4
    assert server.tiers_of(new) == [["host", "disk"]] * 4
    assert "no namespace" in one_line(server.run("drop", "ab" * 16, "--yes"), 1)


def test_a_tier_is_cleared(server: Commanded) -> None:
    keys = server.keep(OLD)
    server.shown("clear", "--tier", "disk", "--yes")
    assert server.tiers_of(keys) == [["host"]] * 4
    assert server.answered("clear", "--yes")["result"] == {"blocks": 4}


def test_copies_are_verified(server: Commanded) -> None:
    server.keep(OLD)
    assert "bad, and gone now   0 copies" in server.shown("verify", "--all")


def test_ends_are_set(server: Commanded) -> None:
    keys = server.keep(OLD)
    assert server.shown("ttl", "--all", "--ttl", "2h").strip() == "changed  4 blocks"
    assert "120 min" in server.shown("block", keys[0])
    assert "not there  1 block" in server.shown("ttl", keys[0], "ab" * 16, "--hard-ttl", "1d")


def test_a_prefix_is_pinned_within_a_budget_and_unpinned(server: Commanded) -> None:
    keys = server.keep(OLD)
    assert "refuses: " in one_line(server.run("pin", keys[-1], "--for", "1h"), 1)
    assert "unsalted  pins" in server.shown("quota", "unsalted", "disk=1MiB", "--pin", "256KiB")
    pinned = server.answered("pin", keys[-1], "--for", "2h", "--tier", "disk")
    assert (pinned["blocks"], pinned["absent"]) == ({"disk": 4}, [])
    assert "unsalted  disk  120 min       4  32 KiB" in server.shown("pins")
    assert server.answered("blocks", "--pinned")["total"] == 4
    assert server.shown("unpin", keys[-1]).strip() == "changed  4 blocks"
    assert server.shown("pins") == "no pins\n"
    assert server.run("pin", keys[-1], "--until", "2099-01-31T08:00").exit_code == 0


def test_quotas_and_budgets_are_set_and_taken_away(server: Commanded) -> None:
    server.keep(OLD)
    quota = server.answered("quota", "@acme", "disk=1MiB", "host=64KiB")
    assert (quota["tenant"], quota["tiers"]["host"]["quota_bytes"]) == (tenant_digest("acme"), 64 << 10)
    assert tenant_digest("acme")[:12] in server.shown("quotas")
    assert server.answered("quota", "@acme", "host=none")["tiers"].keys() == {"disk"}
    budget = server.answered("budget", OLD.digest.hex(), "disk=1MiB", "host=0")
    assert budget["tiers"] == {"disk": 1 << 20, "host": 0}
    assert server.shown("budget", OLD.digest.hex(), "host=none").split()[-3:] == ["disk", "1", "MiB"]


def test_a_tier_is_drained_and_taken_back(server: Commanded) -> None:
    keys = server.keep(OLD)
    server.shown("drain", "host", "--to", "disk")
    assert server.tiers_of(keys) == [["disk"]] * 4
    assert ", draining  " in server.shown("tiers")
    assert server.shown("undrain", "host").strip() == "draining  none"


def test_prefixes_go_out_as_a_file_and_come_in_again(server: Commanded, tmp_path: Path) -> None:
    keys, file = server.keep(OLD), tmp_path / "old.safetensors"
    assert server.shown("export", *keys, "--out", str(file)).endswith(f"written to {file}\n")
    assert server.run("export", *keys, "--out", str(file)).exit_code == 2
    assert server.answered("export", *keys, "--out", str(file), "--yes")["bytes"] == file.stat().st_size
    server.shown("clear", "--yes")
    assert "stored        4 blocks" in server.shown("import", str(file))
    assert [bool(tiers) for tiers in server.tiers_of(keys)] == [True] * 4
    assert not file.with_name("old.safetensors.part").exists()


def test_jobs_are_listed_looked_at_and_cancelled(server: Commanded) -> None:
    server.keep(OLD)
    begun = server.run("verify", "--all", "--no-wait", "--json")
    job = json.loads(begun.stdout)["id"]
    assert begun.stderr == f"prefixd: it goes on; prefixd admin job {job} shows how far it is\n"
    assert server.shown("job", job, "--wait").startswith("verify: done (4 of 4")
    assert server.shown("jobs").splitlines()[1].startswith(f"{job}  verify  done")
    assert server.answered("cancel", job)["state"] == "done"
    assert "refuses: " in one_line(server.run("job", "ab" * 8), 1)


def test_what_was_done_and_how_it_is_set_can_be_read(server: Commanded) -> None:
    server.keep(OLD)
    server.shown("evict", "--all", "--yes")
    assert "api_token" in server.shown("log")
    assert "POST /admin/evict" in server.shown("log", "--limit", "1")
    config = server.shown("config")
    assert "disk_bytes            4 MiB" in config
    assert TOKEN not in config + server.shown("config", "--json")


def test_how_it_went_is_shown_as_bars(server: Commanded) -> None:
    assert "nothing has been measured yet" in server.shown("history")
    assert server.answered("history", "day")["span"] == "day"


@pytest.mark.parametrize(
    "command", [("mode",), ("mode", "off"), ("plans",), ("shadows",), ("audit",), ("explain",)]
)
def test_what_needs_a_model_is_told_in_one_line(server: Commanded, command: tuple[str, ...]) -> None:
    assert "needs a model" in one_line(server.run(*command), 1)


def test_a_tenant_changes_its_own_alone(server: Commanded) -> None:
    keys = server.keep(OLD)
    mine = {"PREFIXD_TOKEN": "acmes-admin-token"}
    assert server.run("blocks", **mine).stdout == "no such blocks\n"
    evicted = server.run("evict", *keys, "--yes", "--json", **mine)
    assert json.loads(evicted.stdout)["result"]["leaves"] == {}
    assert "refuses: " in one_line(server.run("clear", "--yes", **mine), 1)
    assert server.tiers_of(keys) == [["host", "disk"]] * 4
