"""Two threads in the store at the same time, at the moments that matter."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from backends.host import HostBackend
from kvstore.arena import Slot
from kvstore.store import TieredStore
from tests.kvstore.conftest import Rig


def pausing(until: threading.Event, reached: threading.Event) -> Callable[[HostBackend, bytes], Slot | None]:
    """Return a ``surrender`` that waits for ``until`` after saying that it was ``reached``."""
    surrender = HostBackend.surrender

    def paused(backend: HostBackend, key: bytes) -> Slot | None:
        reached.set()
        until.wait(10.0)
        return surrender(backend, key)

    return paused


def put_in_background(rig: Rig, store: TieredStore, number: int) -> threading.Thread:
    thread = threading.Thread(target=rig.put, args=(store, number), kwargs={"flush": False})
    thread.start()
    return thread


def test_a_victim_that_is_stored_again_before_it_has_left_memory_is_not_lost_with_its_old_bytes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rig.open(host_blocks=2, disk_blocks=0)
    rig.put(store, 1)
    rig.put(store, 2)
    may_leave, is_leaving = threading.Event(), threading.Event()
    monkeypatch.setattr(HostBackend, "surrender", pausing(may_leave, is_leaving))
    storing = put_in_background(rig, store, 3)
    assert is_leaving.wait(5.0)

    assert rig.put(store, 1, flush=False) == 0, "the place under its key is not free yet"
    may_leave.set()
    storing.join()

    assert rig.tiers(store, 1, 2, 3) == [None, "host", "host"]
    assert not rig.get(store, 1)
    assert rig.put(store, 1) == 1
    assert rig.get(store, 1)
