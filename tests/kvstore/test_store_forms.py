"""Blocks in a form that is not known here: missed, left alone, counted, and gone only for room or time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvstore.frame import FRAME_VERSION, Expiry, Header
from kvstore.store import TieredStore
from tests.kvstore.conftest import Rig
from tests.kvstore.faults import stored_on_disk

UNKNOWN_FORMS = [{"codec": 200}, {"parts": 2}, {"version": FRAME_VERSION + 1}]


def reform(rig: Rig, number: int, **form: Any) -> None:
    """Make the block of ``number`` on the medium one that another version stored."""
    packed, payload = rig.medium.frames[rig.key(number)]
    rig.medium.frames[rig.key(number)] = replace(Header.unpack(packed), **form).pack(), payload


def reopened(rig: Rig, disk_blocks: int = 32) -> TieredStore:
    rig.stores[-1].close()
    return rig.open(host_blocks=0, disk_blocks=disk_blocks)


@pytest.mark.parametrize("form", UNKNOWN_FORMS)
def test_a_block_that_has_come_to_be_in_an_unknown_form_is_missed_once_and_stays(
    rig: Rig, form: dict[str, int]
) -> None:
    store = stored_on_disk(rig, 1, 2)
    reform(rig, 1, **form)
    assert not rig.get(store, 1)
    assert not rig.get(store, 1)
    assert rig.get(store, 2)
    counts = rig.counts(store, "disk")
    assert (counts["unknown_form"], counts["corrupt"], counts["missing"]) == (1, 0, 0)
    assert store.flush(5.0)
    assert rig.key(1) in rig.medium.frames
    assert rig.tiers(store, 1, 2) == [None, "host"]


@pytest.mark.parametrize("form", UNKNOWN_FORMS)
def test_a_block_in_an_unknown_form_is_never_found_after_a_restart_but_counts(
    rig: Rig, form: dict[str, int]
) -> None:
    stored_on_disk(rig, 1, 2)
    reform(rig, 1, **form)
    store = reopened(rig)
    assert rig.tiers(store, 1, 2) == [None, "disk"]
    assert not rig.get(store, 1)
    disk = store.statistics().tiers[1]
    assert (disk.num_blocks, disk.used_bytes) == (2, rig.medium.stats().occupied_bytes)
    assert rig.key(1) in rig.medium.frames
    assert disk.counts["unknown_form"] == 0, "it was not even read"


@pytest.mark.parametrize("form", UNKNOWN_FORMS)
def test_a_block_in_an_unknown_form_makes_room_like_any_other_the_oldest_first(
    rig: Rig, form: dict[str, int]
) -> None:
    for number in (1, 2, 3):
        rig.put(rig.stores[0] if rig.stores else rig.open(), number)
    reform(rig, 1, **form)
    reform(rig, 2, **form)
    store = reopened(rig, disk_blocks=3)
    rig.put(store, 4)
    assert rig.medium.frames.keys() == {rig.key(2), rig.key(3), rig.key(4)}
    rig.put(store, 5)
    assert rig.medium.frames.keys() == {rig.key(3), rig.key(4), rig.key(5)}
    assert rig.tiers(store, 1, 2, 3, 4, 5) == [None, None, "disk", "disk", "disk"]


def test_a_block_in_an_unknown_form_goes_when_its_time_is_over(rig: Rig) -> None:
    stored_on_disk(rig, 1, 2)
    reform(rig, 1, expiry=Expiry(round(rig.now_s * 1000) + 5000), codec=200)
    store = reopened(rig)
    rig.now_s += 6
    rig.tiers(store, 9)
    assert store.flush(5.0)
    assert rig.medium.frames.keys() == {rig.key(2)}


def test_the_same_block_stored_by_us_does_not_push_the_other_versions_out(rig: Rig) -> None:
    stored_on_disk(rig, 1)
    reform(rig, 1, version=FRAME_VERSION + 1)
    theirs = rig.medium.frames[rig.key(1)]
    rig.stores[-1].close()
    store = rig.open()
    rig.put(store, 1)
    assert rig.tiers(store, 1) == ["host"]
    assert rig.get(store, 1)
    assert rig.medium.frames[rig.key(1)] == theirs
    store.clear("host")
    assert rig.tiers(store, 1) == [None]
