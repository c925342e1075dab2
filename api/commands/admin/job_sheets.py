"""Jobs and what came of them, as tables for people."""

from __future__ import annotations

from typing import Any

from api.commands.admin.sheets import (
    Answer,
    Sheet,
    ago,
    amount,
    amounts,
    blocks,
    facts,
    line,
    listing,
    share,
    sheet,
    short,
    size,
)

_MOST_SHOWN = 20


def jobs_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return a list of jobs."""
    rows = (
        (job["id"], job["kind"], job["state"], _how_far(job), ago(job["started_at"], now_s), job["error"])
        for job in answer["data"]
    )
    return listing(answer, "id|kind|state|>done|>begun|error", rows, "jobs")


def job_sheets(job: Answer, _: float) -> list[Sheet]:
    """Return how far a job is, and what came of it."""
    took = f", {job['ended_at'] - job['started_at']:.1f} s" if job["ended_at"] else ""
    told = [line(f"{job['kind']}: {job['state']} ({_how_far(job)}{took}; job {job['id']})")]
    if job["error"]:
        told.append(line(job["error"]))
    return told + (result_sheets(job["result"]) if job["result"] is not None else [])


def result_sheets(result: Answer, *, would: bool = False) -> list[Sheet]:
    """Return what came of a job, or ``would`` come of it."""
    if "leaves" in result:
        return _outcome(result, would=would)
    if "bad" in result:
        return _verification(result)
    if "stored" in result:
        return _imported(result)
    return [facts((name.replace("_", " "), value) for name, value in result.items())]


def _outcome(outcome: Answer, *, would: bool) -> list[Sheet]:
    tenses = {
        "leaves": "left",
        "arrives": "arrived",
        "evicted": "evicted, to make room",
        "demoted": "demoted",
    }
    if would:
        tenses = {
            "leaves": "would leave",
            "arrives": "would arrive",
            "evicted": "would be evicted, to make room",
            "demoted": "would be demoted",
        }
    done = [(tense, amounts(outcome[kind])) for kind, tense in tenses.items() if outcome[kind]]
    if outcome["computed"]:
        done.append(("would be computed" if would else "computed", blocks(outcome["computed"])))
    stayed = "would stay" if would else "stayed"
    for why, held in outcome["reasons"].items():
        done.append((f"{stayed}, {why}", amount(held)))
    return [facts([("selected", blocks(outcome["num_selected"])), *done])]


def _verification(found: Answer) -> list[Sheet]:
    pairs = [
        ("selected", blocks(found["num_selected"])),
        ("verified", f"{found['verified']} copies, {size(found['bytes'])}"),
        ("without a checksum", f"{found['unsure']} copies"),
        ("not read", f"{found['unread']} copies"),
        ("bad, and gone now", f"{len(found['bad'])} copies"),
    ]
    bad = [sheet("key|tier|reason", ((one["key"], one["tier"], one["reason"]) for one in found["bad"]))]
    return [facts(pairs), *(bad if found["bad"] else [])]


def _imported(found: Answer) -> list[Sheet]:
    pairs = [
        ("in the file", blocks(found["num_selected"])),
        ("stored", blocks(found["stored"])),
        ("there before", blocks(found["there"])),
        ("namespaces", ", ".join(short(digest) for digest in found["namespaces"])),
        ("not taken", blocks(len(found["stays"]))),
    ]
    return [facts(pairs), *_stays(found["stays"])]


def _stays(stays: Any) -> list[Sheet]:
    if not stays:
        return []
    shown = ((stay["key"], stay["tier"], stay["why"]) for stay in stays[:_MOST_SHOWN])
    return [sheet("key|tier|why", shown)]


def _how_far(job: Answer) -> str:
    if job["total"] is None:
        return str(job["done"])
    return f"{job['done']} of {job['total']}, {share(job['done'], job['total'])}"
