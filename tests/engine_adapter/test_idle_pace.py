"""How much of its idle time the engine may spend on what nobody waits for."""

from __future__ import annotations

import pytest

from engine_adapter.engine.idle_pace import IdlePace


def idle_from(pace: IdlePace, now_s: float, lasting_s: float, step_s: float = 0.01) -> float:
    """Let idle time pass, doing work of ``step_s`` whenever it is due; returns when it is over."""
    ends_s = now_s + lasting_s
    while now_s < ends_s:
        pace.note(now_s, is_idle=True)
        due_s = pace.due_s()
        assert due_s is not None
        if due_s > now_s:
            now_s = min(due_s, ends_s)
            continue
        now_s += step_s
        pace.spend(step_s)
    pace.note(now_s, is_idle=True)
    return now_s


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_it_is_the_share_of_the_idle_time(share: float) -> None:
    pace = IdlePace(share)
    idle_from(pace, 100.0, 60.0)
    assert pace.idle_s == pytest.approx(60.0, abs=0.02)
    assert pace.spent_s == pytest.approx(share * 60.0, rel=0.05)


def test_it_begins_after_a_quiet_moment() -> None:
    pace = IdlePace(0.02)
    pace.note(5.0, is_idle=True)
    assert pace.due_s() == 5.25
    pace.note(5.2, is_idle=False)
    assert pace.due_s() is None
    pace.note(6.0, is_idle=True)
    assert pace.due_s() == 6.25
    assert pace.idle_s == pytest.approx(0.2)


def test_busy_time_is_no_idle_time() -> None:
    pace = IdlePace(0.02)
    now_s = idle_from(pace, 100.0, 10.0)
    pace.note(now_s, is_idle=False)
    now_s = idle_from(pace, now_s + 1000.0, 10.0)
    assert pace.idle_s == pytest.approx(20.0, abs=0.04)
    assert pace.spent_s <= 0.02 * 20.0 + 0.06


def test_a_long_rest_is_no_right_to_a_long_burst() -> None:
    pace = IdlePace(0.5)
    pace.note(0.0, is_idle=True)
    pace.note(3600.0, is_idle=True)
    idle_from(pace, 3600.0, 1.0)
    assert pace.spent_s == pytest.approx(0.5 + 0.05, abs=0.02)


def test_a_share_of_nothing_is_never_due() -> None:
    pace = IdlePace(0.0)
    pace.note(0.0, is_idle=True)
    assert pace.due_s() is None
