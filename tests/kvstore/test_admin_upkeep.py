"""Verifying copies, and letting blocks end at another time."""

from __future__ import annotations

import pytest

from kvstore.admin.outcome import BadCopy, Verification
from kvstore.admin.progress import Progress
from kvstore.admin.selection import BlockFilter
from kvstore.errors import BackendError, RequestError
from kvstore.frame import Header
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.store import StoreConfig
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, AmendingDict, Rig
from tests.kvstore.faults import raising

ALL = BlockFilter()


def flip_a_byte(rig: Rig, number: int) -> None:
    header, payload = rig.medium.frames[rig.key(number)]
    rig.medium.frames[rig.key(number)] = header, bytes([payload[0] ^ 1]) + payload[1:]


def test_copies_that_are_good(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    progress = Progress()
    assert store.admin.verify(ALL, progress=progress) == Verification(2, 4, 4 * BLOCK_BYTES, (), 0, 0)
    assert (progress.done, progress.total) == (2, 2)


def test_bad_copies_are_told_and_go(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(audit_share=1.0))
    rig.put(store, 1, 2)
    rig.put(store, 3)
    rig.put(store, 4)
    flip_a_byte(rig, 2)
    del rig.medium.frames[rig.key(3)]
    hit = store.lookup([rig.key(4)])
    (slot,) = store.places(hit)
    assert slot is not None
    slot.view[0] ^= 1
    hit.release()
    found = store.admin.verify(ALL)
    assert found == Verification(
        4, 5, 5 * BLOCK_BYTES,
        (
            BadCopy(rig.key(2), "disk", "corrupt"),
            BadCopy(rig.key(3), "disk", "missing"),
            BadCopy(rig.key(4), "host", "corrupt"),
        ),
        0, 0,
    )  # fmt: skip
    assert store.flush(5.0)
    assert [view.tiers for view in store.admin.blocks().blocks] == [
        ("host", "disk"), ("host",), ("host",), ("disk",),
    ]  # fmt: skip
    assert (rig.counts(store, "disk")["corrupt"], rig.counts(store, "disk")["missing"]) == (1, 1)
    assert rig.counts(store, "host")["corrupt"] == 1


def test_memory_without_a_checksum_is_not_sure(rig: Rig) -> None:
    store = rig.open(disk_blocks=0, config=StoreConfig(audit_share=0.0))
    rig.put(store, 1)
    assert store.admin.verify(ALL) == Verification(1, 0, 0, (), 1, 0)


def test_what_cannot_be_read_now_stays(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1)
    rig.medium.fail = raising("get", BackendError("disk", "get", "no"))
    assert store.admin.verify(ALL) == Verification(1, 0, 0, (), 0, 1)
    rig.medium.fail = lambda _operation, _key: None
    assert rig.get(store, 1)


def test_verifying_can_be_called_off(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    progress = Progress()
    progress.cancel()
    assert store.admin.verify(ALL, progress=progress) == Verification(2, 0, 0, (), 0, 0, is_cancelled=True)


def ends(rig: Rig, number: int) -> dict[str, int | None] | None:
    view = rig.stores[-1].admin.block(rig.key(number))
    return None if view is None else dict(view.ends_ms)


def test_a_soft_end_comes_sooner_or_later_as_told(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    told = store.admin.set_ttl(BlockFilter(keys=(rig.key(1), rig.key(2), rig.key(3))), ttl_s=10.0)
    assert (told.num_blocks, told.absent) == (2, (rig.key(3),))
    assert ends(rig, 2) == {"host": 1_010_000, "disk": 1_010_000}
    store.admin.set_ttl(BlockFilter(keys=(rig.key(2),)), ttl_s=20.0)
    assert ends(rig, 2) == {"host": 1_020_000, "disk": 1_020_000}
    rig.now_s += 19.0
    assert ends(rig, 1) == {"host": 1_020_000, "disk": 1_020_000}, "what another follows lives as long"
    rig.now_s += 1.0
    assert (ends(rig, 1), ends(rig, 2)) == (None, None)
    assert rig.tiers(store, 1, 2) == [None, None]


def test_the_next_use_puts_a_soft_end_off(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    store.admin.set_ttl(ALL, ttl_s=10.0)
    rig.now_s += 5.0
    store.lookup([rig.key(1)], ttl_s=60.0).release()
    assert ends(rig, 1) == {"host": 1_065_000, "disk": 1_065_000}


def test_a_hard_end_counts_from_the_first_write_and_is_never_put_off(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    rig.now_s += 30.0
    store.admin.set_ttl(ALL, hard_ttl_s=60.0)
    view = store.admin.block(rig.key(1))
    assert view is not None
    assert view.hard_ms == 1_060_000
    store.admin.set_ttl(ALL, ttl_s=3600.0, hard_ttl_s=3600.0)
    assert ends(rig, 1) == {"host": 1_060_000, "disk": 1_060_000}
    store.admin.set_ttl(ALL, hard_ttl_s=1.0)
    assert ends(rig, 1) is None


def test_a_soft_end_waits_for_a_pin(rig: Rig) -> None:
    rules = Retention(TenantRule(Lifetime(), pin_bytes=1 << 20))
    store = rig.open(config=StoreConfig(retention=rules))
    rig.put(store, 1)
    store.pin([rig.key(1)], for_s=60.0, tiers=["host"])
    store.admin.set_ttl(ALL, ttl_s=10.0)
    assert ends(rig, 1) == {"host": 1_060_000, "disk": 1_060_000}


def test_headers_follow(rig: Rig) -> None:
    rig.medium = AmendingDict()
    store = rig.open(write_mode=WriteMode.THROUGH)
    rig.put(store, 1)
    store.admin.set_ttl(ALL, ttl_s=10.0, hard_ttl_s=5.0)
    assert store.flush(5.0)
    expiry = Header.unpack(rig.medium.frames[rig.key(1)][0]).expiry
    assert (expiry.soft_ms, expiry.hard_ms) == (1_010_000, 1_005_000)


@pytest.mark.parametrize(
    ("times", "param"),
    [({}, "ttl_s"), ({"ttl_s": 0.0}, "ttl_s"), ({"hard_ttl_s": 1e12}, "hard_ttl_s")],
)
def test_times_that_cannot_be(rig: Rig, times: dict[str, float], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        rig.open().admin.set_ttl(ALL, **times)
    assert caught.value.param == param
