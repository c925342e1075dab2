"""What the administration answers, as tables for people: what a store in a test does not easily come to."""

from __future__ import annotations

from api.commands.admin.decision_sheets import audit_sheets, shadows_sheets
from api.commands.admin.history_sheets import bars, history_sheets
from api.commands.admin.job_sheets import job_sheets, result_sheets
from api.commands.admin.keeping_sheets import quota_sheets
from api.commands.admin.operating_sheets import log_sheets
from api.commands.admin.sheets import ago, amounts, plain, share, took, until
from api.quantities import format_duration

OUTCOME = {
    "num_selected": 5, "leaves": {"disk": {"blocks": 2, "bytes": 2048}}, "arrives": {}, "computed": 3,
    "evicted": {"host": {"blocks": 1, "bytes": 1024}}, "demoted": {}, "is_cancelled": False,
    "reasons": {"in use": {"blocks": 1, "bytes": 1024}}, "effects": [], "stays": [],
}  # fmt: skip


def test_the_engines_own_pool_has_blocks_without_bytes() -> None:
    held = {"device": {"blocks": 5, "bytes": 0}, "disk": {"blocks": 1, "bytes": 1024}}
    assert amounts(held) == "device 5 blocks; disk 1 block, 1 KiB"


def test_what_an_action_was_on_is_told_as_it_would_be_typed() -> None:
    entry = {
        "at": 1.0, "who": "operator", "tenant": None, "action": "PUT /admin/quotas/{tenant}",
        "outcome": "done", "job": None,
        "on": {"tiers": {"disk": 1024, "host": None}, "filter": {}, "keys": ["0f", "ab"]},
    }  # fmt: skip
    (told,) = log_sheets({"data": [entry], "total": 1}, 2.0)
    assert told.rows[0][4] == "tiers disk=1024 host=none, filter all, keys 0f, ab"


def test_a_tenant_is_told_whole_where_it_is_told_at_all_to_be_used_again() -> None:
    quota = {"tenant": "ab" * 16, "tiers": {}, "pinned_bytes": 0, "pin_bytes": 1024}
    assert quota_sheets(quota, 0.0)[0].rows[0][0] == "ab" * 16


def test_a_dry_run_and_what_came_of_it_differ_in_tense() -> None:
    (would,) = result_sheets(OUTCOME, would=True)
    assert list(would.rows) == [
        ["selected", "5 blocks"],
        ["would leave", "disk 2 blocks, 2 KiB"],
        ["would be evicted, to make room", "host 1 block, 1 KiB"],
        ["would be computed", "3 blocks"],
        ["would stay, in use", "1 block, 1 KiB"],
    ]
    (did,) = result_sheets(OUTCOME)
    assert [row[0] for row in did.rows][1:] == ["left", "evicted, to make room", "computed", "stayed, in use"]


def test_a_job_says_how_far_it_is_and_why_it_failed() -> None:
    job = {"id": "5ad1", "kind": "evict", "state": "running", "done": 1, "total": 4, "ended_at": None}
    told = job_sheets({**job, "error": None, "result": None}, 0.0)
    assert [sheet.title for sheet in told] == ["evict: running (1 of 4, 25 %; job 5ad1)"]
    ended = {
        **job,
        "state": "failed",
        "started_at": 1.0,
        "ended_at": 3.5,
        "error": "it\nbroke",
        "result": None,
    }
    assert [sheet.title for sheet in job_sheets(ended, 0.0)] == [
        "evict: failed (1 of 4, 25 %, 2.5 s; job 5ad1)",
        "it?broke",
    ]


def test_bad_copies_and_those_not_imported_are_listed() -> None:
    bad = {"key": "ab", "tier": "disk", "reason": "checksum differs"}
    verified = {
        "num_selected": 1,
        "verified": 1,
        "bytes": 0,
        "bad": [bad],
        "unsure": 0,
        "unread": 0,
        "is_cancelled": False,
    }
    assert list(result_sheets(verified)[1].rows) == [["ab", "disk", "checksum differs"]]
    imported = {
        "num_selected": 1, "stored": 0, "there": 0, "namespaces": [], "is_cancelled": False,
        "stays": [{"key": "cd", "tier": "host", "why": "would not fit", "bytes": 1}],
    }  # fmt: skip
    assert list(result_sheets(imported)[1].rows) == [["cd", "host", "would not fit"]]


def test_wrong_copies_of_the_audit_are_listed() -> None:
    wrong = {"key": "ab", "tier": "disk", "label": "m", "block": 3, "found_at": 40.0}
    audit = {
        "share": 0.02, "prompts": 1, "memory_bytes": 10, "compared_blocks": 5, "compared_bytes": 10,
        "wrong_blocks": 1, "failures": 0, "last_at": 90.0, "coverage": 0.5, "spent_s": 1.0, "idle_s": 50.0,
        "last_wrong": [wrong],
    }  # fmt: skip
    facts, listed = audit_sheets(audit, 100.0)
    assert ["taken of it", "1 s of 50 s"] in list(facts.rows)
    assert list(listed.rows) == [["ab", "disk", "m", "3", "60 s ago"]]


def test_a_recording_and_what_ended_it_are_shown() -> None:
    recording = {"file": "t.jsonl", "num_recorded": 3, "num_dropped": 1, "trouble": "disk full"}
    none, shown = shadows_sheets({"shadows": None, "recording": recording}, 0.0)
    assert none.title == "no shadow policies (--shadow-policies)"
    assert ["trouble", "disk full"] in list(shown.rows)


def test_history_is_drawn_as_bars() -> None:
    series = {"name": "ttft_p50", "unit": "seconds", "label": "disk", "values": [0.1, None, 0.2, -0.1]}
    (sheet,) = history_sheets({"span": "hour", "interval_s": 5, "series": [series]}, 0.0)
    assert list(sheet.rows) == [["ttft p50", "disk", "-100 ms", "200 ms", "▅ █▁"]]
    assert bars([1.0] * 720) == "█" * 48
    assert bars([]) == bars([None]).strip() == ""
    assert bars([0.0]) == "▁"


def test_amounts_are_told_for_people() -> None:
    assert [format_duration(seconds) for seconds in (0, 119, 120, 7200, 172_800)] == [
        "0 s", "119 s", "2 min", "2 h", "2 d",
    ]  # fmt: skip
    assert (ago(None, 5.0), ago(3.0, 5.0), ago(9.0, 5.0)) == ("-", "2 s", "0 s")
    assert (until(None, 5.0), until(9.0, 5.0), until(1.0, 5.0)) == ("never", "4 s", "0 s")
    assert (took(None), took(0.0), took(0.25), took(-2.0)) == ("-", "0 s", "250 ms", "-2 s")
    assert (share(1, 4), share(1, 0)) == ("25 %", "-")
    assert amounts({"host": {"blocks": 0, "bytes": 0}}) == "nothing"
    assert plain("a\x1b[2J\nb") == "a?[2J?b"
