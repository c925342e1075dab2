from __future__ import annotations

import logging

import pytest

from engine_adapter.faults import Faults


def test_an_error_becomes_a_value_and_is_counted() -> None:
    faults = Faults(logging.getLogger("test"))
    assert faults.caught(lambda: 1 // 1, otherwise=0) == 1
    assert faults.caught(lambda: 1 // 0, otherwise=0) == 0
    assert faults.num == 1


def test_many_errors_are_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    faults = Faults(logging.getLogger("test"), lambda: now_s)
    for _ in range(10):
        faults.note(ValueError("odd"))
    assert [record.getMessage() for record in caplog.records] == [
        "prefixd: 1 errors were made into misses; the latest"
    ]
    now_s = 61.0
    faults.note(ValueError("odd"))
    assert "10 errors" in caplog.records[1].getMessage()
    assert faults.num == 11


def test_an_error_is_caught_counted_and_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    faults = Faults(logging.getLogger("test"), lambda: now[0])

    def fail() -> int:
        raise OSError("unplugged")

    with caplog.at_level(logging.ERROR):
        assert [faults.caught(fail, 7) for _ in range(3)] == [7] * 3
        now[0] = 61.0
        assert faults.caught(fail, 7) == 7
    assert [record.args for record in caplog.records] == [(1,), (3,)]
    assert (faults.num, faults.take(), faults.take()) == (4, 4, 0)
