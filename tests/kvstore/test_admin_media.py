"""Operations on media with a codec, shared with others, or that read several blocks in one exchange."""

from __future__ import annotations

from kvstore.admin.outcome import Effect, Kind, Verification
from kvstore.admin.selection import BlockFilter
from kvstore.retention import Retention, TenantRule
from kvstore.store import StoreConfig
from kvstore.tier import WriteMode
from tests.kvstore.codecs import ZlibCodec
from tests.kvstore.conftest import BLOCK_BYTES, AmendingDict, Rig, SharedDict, StreamDict

ALL = BlockFilter()
ON_DISK = BLOCK_BYTES + 192


def of(rig: Rig, *numbers: int) -> BlockFilter:
    return BlockFilter(keys=tuple(rig.key(number) for number in numbers))


def test_with_a_codec_a_dry_run_says_the_most_it_can_take(rig: Rig) -> None:
    store = rig.open(disk_blocks=1, write_mode=WriteMode.BACK, codec=ZlibCodec())
    rig.put(store, 1)
    rig.put(store, 2)
    store.admin.move(of(rig, 1), "host", "disk")
    (packed,) = [len(payload) for _, payload in rig.medium.frames.values()]
    foretold = store.admin.move(of(rig, 2), "host", "disk", dry_run=True)
    assert foretold.effects == (
        Effect(Kind.EVICTED, rig.key(1), "disk", packed + 192, ""),
        Effect(Kind.ARRIVES, rig.key(2), "disk", ON_DISK, ""),
        Effect(Kind.LEAVES, rig.key(2), "host", BLOCK_BYTES, ""),
    )
    done = store.admin.move(of(rig, 2), "host", "disk")
    assert done.effects == (
        Effect(Kind.ARRIVES, rig.key(2), "disk", packed + 192, ""),
        Effect(Kind.LEAVES, rig.key(2), "host", BLOCK_BYTES, ""),
    ), "who does not have to make way stays"
    assert rig.get(store, 1)
    assert rig.get(store, 2)
    assert store.admin.verify(ALL).bad == ()


def test_what_comes_from_a_codec_has_a_checksum_in_memory_where_the_audit_wants_one(rig: Rig) -> None:
    rig.put(rig.open(host_blocks=0, codec=ZlibCodec()), 1)
    rig.stores[0].close()
    store = rig.open(codec=ZlibCodec(), config=StoreConfig(audit_share=1.0))
    store.admin.warm(ALL)
    assert store.admin.verify(ALL) == Verification(1, 2, 2 * BLOCK_BYTES, (), 0, 0)


def test_a_pin_that_moved_outlives_a_restart(rig: Rig) -> None:
    rig.medium = AmendingDict()
    rules = StoreConfig(retention=Retention(TenantRule(pin_bytes=1 << 20)))
    store = rig.open(write_mode=WriteMode.BACK, config=rules)
    rig.put(store, 1)
    store.pin([rig.key(1)], for_s=60.0)
    store.admin.move(ALL, "host", "disk")
    store.close()
    assert [(pin.tier, pin.until_ms) for pin in rig.open(config=rules).pins()] == [("disk", 1_060_000)]


def test_a_form_that_cannot_be_read_here_stays_and_can_be_evicted(rig: Rig) -> None:
    rig.put(rig.open(codec=ZlibCodec()), 1)
    rig.stores[0].close()
    store = rig.open()
    view = store.admin.block(rig.key(1))
    assert view is not None
    assert (view.tiers, view.unreadable) == ((), ("disk",))
    moved = store.admin.move(ALL, "disk", "host")
    assert [stay.why.value for stay in moved.stays] == ["in a form that cannot be read here"]
    assert store.admin.verify(ALL) == Verification(1, 0, 0, (), 0, 0)
    assert [effect.key for effect in store.admin.evict(ALL).effects] == [rig.key(1)]
    assert rig.medium.frames == {}


def test_what_others_stored_on_a_shared_medium_makes_way_and_stays_there(rig: Rig) -> None:
    rig.medium = SharedDict()
    others = rig.open()
    rig.put(others, 1)
    store = rig.open(host_blocks=4, disk_blocks=1, write_mode=WriteMode.BACK)
    inquiry = store.inquire([rig.key(1)], rig.now_s + 5.0)
    assert inquiry is not None
    assert inquiry.wait(5.0)
    rig.put(store, 2)
    foretold = store.admin.move(of(rig, 2), "host", "disk", dry_run=True)
    assert store.admin.move(of(rig, 2), "host", "disk") == foretold
    assert [(effect.kind.value, effect.key[-1]) for effect in foretold.effects] == [
        ("evicted", 1), ("arrives", 2), ("leaves", 2),
    ]  # fmt: skip
    assert sorted(rig.medium.frames) == [rig.key(1), rig.key(2)]


def test_a_medium_that_streams_is_read_one_by_one(rig: Rig) -> None:
    rig.medium = StreamDict()
    rig.put(rig.open(host_blocks=0), 1, 2)
    rig.stores[0].close()
    store = rig.open()
    assert [effect.key for effect in store.admin.warm(ALL).effects] == [rig.key(1), rig.key(2)]
    assert rig.tiers(store, 1, 2) == ["host", "host"]
    assert rig.counts(store, "disk")["loads"] == 0, "nobody used them"
