"""``benchmarks/dying_clients.py`` in miniature: what clients held when they were killed is given back."""

from __future__ import annotations

import pytest

from benchmarks.dying_clients import soak


def test_clients_that_are_killed_at_any_moment_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.store.clients._SILENT_S", 2.0)
    report = soak(10.0, 3, silent_s=20.0)
    assert report["killed_clients"] > 3
    assert report["wrong_blocks"] == report["failed_clients"] == 0
    assert report["is_level"], (report["before"], report["after"])
