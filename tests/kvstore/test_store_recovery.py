"""What a scan of a medium finds while the store is at work."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore.frame import Expiry, Header, checksum
from kvstore.statistics import State
from kvstore.store import TieredStore
from tests.eventually import eventually
from tests.kvstore.conftest import BLOCK_BYTES, Rig
from tests.kvstore.faults import raising


def frame_of(rig: Rig, number: int, soft_ms: int = 0) -> Header:
    """Leave the block of ``number`` on the medium and return its header."""
    payload = rig.payload(number)
    header = Header(
        namespace=rig.namespace.digest, key=rig.key(number), parent=b"", block_tokens=16,
        stored_bytes=BLOCK_BYTES, raw_bytes=BLOCK_BYTES, created_ms=0, expiry=Expiry(soft_ms),
        checksum=checksum(payload),
    )  # fmt: skip
    rig.medium.frames[rig.key(number)] = header.pack(), bytes(payload)
    return header


def scanning(rig: Rig, scan: Callable[[Callable[[Header], None]], None], disk_blocks: int = 8) -> TieredStore:
    """Return a store whose scan has come to its end."""
    done = threading.Event()

    def found(enter: Callable[[Header], None]) -> None:
        scan(enter)
        done.set()

    rig.medium.found = found
    store = rig.open(host_blocks=0, disk_blocks=disk_blocks)
    assert done.wait(5.0)
    return store


def test_a_block_that_a_scan_finds_can_be_loaded(rig: Rig) -> None:
    store = scanning(rig, lambda enter: enter(frame_of(rig, 1)))
    assert rig.tiers(store, 1) == ["disk"]
    assert rig.get(store, 1)


def test_a_scan_fills_the_budget_and_removes_what_is_beyond(rig: Rig) -> None:
    def scan(enter: Callable[[Header], None]) -> None:
        for number in range(5):
            enter(frame_of(rig, number))

    store = scanning(rig, scan, disk_blocks=3)
    assert rig.tiers(store, 0, 1, 2, 3, 4) == ["disk", "disk", "disk", None, None]
    assert rig.medium.frames.keys() == {rig.key(0), rig.key(1), rig.key(2)}


def test_a_block_found_twice_is_entered_once(rig: Rig) -> None:
    def scan(enter: Callable[[Header], None]) -> None:
        for _ in range(2):
            enter(frame_of(rig, 1))

    store = scanning(rig, scan)
    assert store.statistics().tiers[1].num_blocks == 1


def test_an_old_header_does_not_take_the_block_that_was_stored_since(rig: Rig) -> None:
    ended: list[Header] = []
    enters: list[Callable[[Header], None]] = []

    def scan(enter: Callable[[Header], None]) -> None:
        ended.append(frame_of(rig, 1, soft_ms=1))
        enters.append(enter)

    store = scanning(rig, scan)
    rig.put(store, 1)
    enters[0](ended[0])
    assert rig.get(store, 1)
    assert rig.tiers(store, 1) == ["disk"]


def test_what_is_found_unwanted_and_cannot_be_removed_is_told_and_tried_again(rig: Rig) -> None:
    rig.medium.fail = raising("delete", OSError("operation not permitted"))
    store = scanning(rig, lambda enter: enter(frame_of(rig, 1, soft_ms=1)))
    assert store.health().state is State.DEGRADED
    rig.medium.fail = lambda _operation, _key: None
    rig.put(store, 2)
    eventually(lambda: rig.key(1) not in rig.medium.frames)
    assert store.health().state is State.OK
