"""Plans, shadow policies and the mode, as tables for people."""

from __future__ import annotations

from api.commands.admin.sheets import Answer, Sheet, ago, counts, facts, line, listing, sheet, size, took
from api.quantities import format_duration


def mode_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return the mode."""
    return [line(answer["mode"])]


def plans_sheets(answer: Answer, now_s: float) -> list[Sheet]:
    """Return what was decided about the last requests, and what came of it."""
    rows = ((*_account(account, now_s), account["reason"]) for account in answer["data"])
    columns = ">request|>ended|how|mode|>tokens|from|chosen|>predicted|>measured|>TTFT|why"
    return listing(answer, columns, rows, "requests have ended yet")


def shadows_sheets(answer: Answer, _: float) -> list[Sheet]:
    """Return what other eviction policies would have hit, and how far a recording is."""
    return [*_shadows(answer["shadows"]), *_recording(answer["recording"])]


def audit_sheets(audit: Answer, now_s: float) -> list[Sheet]:
    """Return what was computed once more in idle time, and what was wrong."""
    idle = f"{format_duration(audit['spent_s'])} of {format_duration(audit['idle_s'])}"
    pairs = [
        ("share of the idle time", audit["share"]),
        ("taken of it", idle),
        ("compared", f"{audit['compared_blocks']} copies, {size(audit['compared_bytes'])}"),
        ("the last", f"{ago(audit['last_at'], now_s)} ago" if audit["last_at"] else "none yet"),
        ("of what is stored", f"{100 * audit['coverage']:.1f} %"),
        ("prompts remembered", f"{audit['prompts']}, {size(audit['memory_bytes'])}"),
        ("attempts that failed", audit["failures"]),
        ("wrong, and quarantined", audit["wrong_blocks"]),
    ]
    rows = (
        (one["key"], one["tier"], one["label"], one["block"], f"{ago(one['found_at'], now_s)} ago")
        for one in audit["last_wrong"]
    )
    wrong = [sheet("wrong block|tier|model|>block|>found", rows)] if audit["last_wrong"] else []
    return [facts(pairs), *wrong]


def _account(account: Answer, now_s: float) -> tuple[object, ...]:
    plan = account["plan"] or {}
    return (
        account["number"], ago(account["ended_at"], now_s), account["ended"], account["mode"],
        account["prompt_tokens"], counts(account["tokens_by_source"]), plan.get("chosen"),
        took(plan.get("predicted_ttft_s")), took(plan.get("actual_s")), took(account["ttft_s"]),
    )  # fmt: skip


def _shadows(shadows: Answer | None) -> list[Sheet]:
    if shadows is None:
        return [line("no shadow policies (--shadow-policies)")]
    rows = (
        (tier, policy + (" (live)" if policy == told["live"] else ""), f"{100 * ratio:.1f} %")
        for tier, told in shadows["tiers"].items()
        for policy, ratio in told["hit_ratios"].items()
    )
    cost = f"{100 * shadows['core_share']:.1f} % of a core, {shadows['num_dropped']} requests left out"
    return [sheet("tier|policy|>hits", rows), line(cost)]


def _recording(recording: Answer | None) -> list[Sheet]:
    if recording is None:
        return []
    pairs = [
        ("recorded in", recording["file"]),
        ("requests", recording["num_recorded"]),
        ("left out", recording["num_dropped"]),
        ("trouble", recording["trouble"] or "none"),
    ]
    return [facts(pairs)]
