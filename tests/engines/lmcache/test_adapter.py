from __future__ import annotations

import gc
import time
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

from engine_adapter.lmcache import PrefixdL2Adapter
from kvstore.errors import ConfigError
from tests.engines.lmcache.conftest import Driven, Open, key_of, layouts_of, numbers_of
from tests.valkey import Valkey

KEYS = [key_of(number) for number in range(4)]
BLOCKS = {key: numbers_of(number) for number, key in enumerate(KEYS)}
NBYTES = 2 * 2 * 2 * 16 * 64


@pytest.fixture(params=["memory and disk", "disk", "redis", "sidecar"])
def driven(request: pytest.FixtureRequest, opened: Open) -> Driven:
    if request.param == "redis":
        return opened(**in_redis(request.getfixturevalue("valkey")))
    if request.param == "sidecar":
        return opened(store=request.getfixturevalue("sidecar"))
    return opened() if request.param == "memory and disk" else opened(host_bytes=0)


def in_redis(valkey: Valkey) -> dict[str, Any]:
    return {"host_bytes": 0, "disk_bytes": 0, "redis_url": valkey.url}


def test_what_was_stored_is_found_and_loaded(driven: Driven) -> None:
    told = driven.store(BLOCKS)
    assert (told.is_successful(), told.bytes_transferred()) == (True, 4 * NBYTES)
    assert driven.find([*KEYS, key_of(9)]) == [True] * 4 + [False]
    for key, numbers in zip(KEYS, driven.load(KEYS), strict=True):
        assert numbers is not None
        assert torch.equal(numbers, BLOCKS[key])
    driven.adapter.submit_unlock(KEYS)
    assert driven.adapter.report_status()["num_locked"] == 0


def test_what_is_stored_again_is_not_copied_again(driven: Driven) -> None:
    driven.store(BLOCKS)
    told = driven.store(BLOCKS)
    assert (told.is_successful(), told.bytes_transferred()) == (True, 0)


def test_it_is_an_adapter_of_theirs_with_three_descriptors(opened: Open) -> None:
    adapter = opened().adapter
    assert isinstance(adapter, L2AdapterInterface)
    told = {
        adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()
    }  # fmt: skip
    assert len(told) == 3


def test_listeners_hear_of_chunks_stored_used_and_deleted(driven: Driven) -> None:
    driven.store(BLOCKS)
    assert driven.heard.stored == [(key, NBYTES) for key in KEYS]
    assert driven.adapter.get_usage().total_bytes_used == 4 * NBYTES
    driven.fetch(KEYS[:2])
    assert driven.heard.accessed == KEYS[:2]
    driven.adapter.delete(KEYS[:1])
    assert driven.heard.deleted == KEYS[:1]
    assert driven.find(KEYS[:2]) == [False, True]
    assert driven.adapter.get_usage().total_bytes_used == 3 * NBYTES


def test_what_is_locked_is_not_deleted(driven: Driven) -> None:
    driven.store(BLOCKS)
    assert driven.find(KEYS) == [True] * 4
    driven.adapter.delete(KEYS)
    assert None not in driven.load(KEYS)
    driven.adapter.submit_unlock(KEYS)
    driven.adapter.delete(KEYS)
    assert driven.find(KEYS) == [False] * 4


def test_listeners_hear_of_what_the_store_evicts_by_itself(opened: Open) -> None:
    driven = opened(host_bytes=40 * NBYTES, disk_bytes=0)
    for number in range(100):
        driven.store({key_of(number): numbers_of(number)})
    used_bytes = driven.adapter.get_usage().total_bytes_used
    assert len(driven.heard.deleted) >= 40
    assert used_bytes == (100 - len(driven.heard.deleted)) * NBYTES
    assert not any(driven.find(driven.heard.deleted))


def test_listeners_hear_of_what_a_lookup_finds_gone(driven: Driven) -> None:
    driven.store(BLOCKS)
    places = [held.place.key for held in driven.adapter._holdings.of(KEYS[:2]).values()]
    assert driven.adapter._store.flush(5.0), "what is being written stays"
    assert driven.adapter._store.evict(places) == 2
    assert driven.find(KEYS) == [False, False, True, True]
    assert driven.heard.deleted == KEYS[:2]


def test_what_goes_at_once_is_not_counted_for_ever(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = opened(disk_bytes=0)
    holdings, deleting = driven.adapter._holdings, []
    add = holdings.add

    def add_while_it_is_deleted(key: Any, holding: Any) -> bool:
        is_new = add(key, holding)
        deleting.append(Thread(target=driven.adapter.delete, args=([key],)))
        deleting[-1].start()
        deleting[-1].join(0.1)  # it cannot end before the chunk was told
        return bool(is_new)

    monkeypatch.setattr(holdings, "add", add_while_it_is_deleted)
    driven.store({KEYS[0]: BLOCKS[KEYS[0]]})
    deleting[0].join()
    assert driven.heard.deleted == KEYS[:1]
    assert driven.adapter.get_usage().total_bytes_used == 0


def test_a_new_process_finds_what_the_disk_has(opened: Open) -> None:
    first = opened()
    first.store(BLOCKS)
    first.adapter.close()
    second = opened()
    for key, numbers in zip(KEYS, second.fetch(KEYS), strict=True):
        assert numbers is not None
        assert torch.equal(numbers, BLOCKS[key])
    assert second.adapter.get_usage().total_bytes_used == 4 * NBYTES


def test_what_another_process_stored_can_be_deleted_before_it_is_used(opened: Open) -> None:
    first = opened()
    first.store(BLOCKS)
    first.adapter.close()
    second = opened()
    assert second.find(KEYS) == [True] * 4
    second.adapter.submit_unlock(KEYS)
    second.adapter.delete(KEYS[:3])
    assert second.find(KEYS) == [False] * 3 + [True]


def test_another_process_finds_what_redis_has_but_for_what_went_bad(opened: Open, valkey: Valkey) -> None:
    opened(**in_redis(valkey)).store(BLOCKS)
    admin = valkey.admin()
    name = max(admin.keys("*"), key=lambda name: len(admin.dump(name) or b""))
    offset = admin.strlen(name) - NBYTES // 2
    byte = bytes(admin.getrange(name, offset, offset))  # type: ignore[arg-type]  # bytes: nothing is decoded
    admin.setrange(name, offset, bytes([byte[0] ^ 1]))
    loaded = opened(**in_redis(valkey)).fetch(KEYS)
    assert sum(numbers is None for numbers in loaded) == 1
    for key, numbers in zip(KEYS, loaded, strict=True):
        assert numbers is None or torch.equal(numbers, BLOCKS[key])


def test_redis_that_is_gone_costs_hits_and_nothing_else(opened: Open, valkey: Valkey) -> None:
    driven = opened(**in_redis(valkey))
    driven.store(BLOCKS)
    valkey.kill()
    assert driven.fetch(KEYS) == [None] * 4
    assert driven.adapter.report_status()["num_locked"] == 0
    told = driven.store({key_of(number): numbers_of(number) for number in range(10, 14)})
    assert (told.is_successful(), told.bytes_transferred()) == (False, 0)
    assert len(driven.heard.stored) == 4


def test_a_flipped_byte_is_a_miss(opened: Open, tmp_path: Path) -> None:
    first = opened()
    first.store(BLOCKS)
    first.adapter.close()
    flip_a_byte(tmp_path / "blocks")
    loaded = opened().fetch(KEYS)
    assert sum(numbers is None for numbers in loaded) == 1
    for key, numbers in zip(KEYS, loaded, strict=True):
        assert numbers is None or torch.equal(numbers, BLOCKS[key])


def flip_a_byte(folder: Path) -> None:
    """Flip a byte in the middle of one block's payload."""
    file = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    held = bytearray(file.read_bytes())
    held[-NBYTES // 2] ^= 1
    file.write_bytes(held)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"weights": "fine-tuned"}, id="weights"),
        pytest.param({"chunk_tokens": 128}, id="chunk"),
    ],
)
def test_other_settings_share_nothing(opened: Open, other: dict[str, object]) -> None:
    first = opened()
    first.store(BLOCKS)
    first.adapter.close()
    assert opened(**other).find(KEYS) == [False] * 4


def test_another_dtype_rank_or_salt_is_another_chunk(driven: Driven) -> None:
    driven.store(BLOCKS)
    assert driven.find(KEYS, layouts_of(torch.float16)) == [False] * 4
    assert driven.load(KEYS, torch.float16) == [None] * 4
    assert (
        driven.find([key_of(0, rank=0x02000200), key_of(0, salt="me"), key_of(0, model="other")])
        == [False] * 3
    )


def test_layers_of_another_group_are_chunks_of_their_own(driven: Driven) -> None:
    others = {key_of(number, group=1): numbers_of(10 + number) for number in range(3)}
    driven.store(BLOCKS)
    driven.store(others)
    both = [*KEYS, *others, key_of(3, group=1)]
    layouts = layouts_of() | {1: layouts_of()[0]}
    assert driven.find(both, layouts) == [True] * 7 + [False]
    for key, numbers in zip(both[:7], driven.load(both[:7]), strict=True):
        assert numbers is not None
        assert torch.equal(numbers, (BLOCKS | others)[key])


def test_mode_off_does_nothing(opened: Open) -> None:
    driven = opened(mode="off")
    told = driven.store(BLOCKS)
    assert (told.is_successful(), told.bytes_transferred()) == (True, 0)
    assert driven.find(KEYS) == [False] * 4
    assert driven.load(KEYS) == [None] * 4


def test_mode_off_finds_nothing_of_what_is_there(opened: Open) -> None:
    first = opened()
    first.store(BLOCKS)
    first.adapter.close()
    off = opened(mode="off")
    assert off.find(KEYS) == [False] * 4
    assert off.load(KEYS) == [None] * 4
    assert off.adapter.report_status()["num_locked"] == 0


def test_mode_observe_stores_and_counts_and_gives_nothing(opened: Open) -> None:
    driven = opened(mode="observe")
    assert driven.store(BLOCKS).bytes_transferred() == 4 * NBYTES
    assert driven.fetch(KEYS) == driven.load(KEYS) == [None] * 4
    status = driven.adapter.report_status()
    assert (status["chunks_looked_up"], status["chunks_found"], status["num_locked"]) == (4, 4, 0)


def test_mode_verify_keeps_out_what_is_computed_otherwise(opened: Open) -> None:
    driven = opened(mode="verify", verify_share=1.0)
    driven.store(BLOCKS)
    assert driven.find(KEYS) == [False] * 4, "they are to be computed again"
    again = {key: numbers + 1e-4 * numbers.abs() for key, numbers in BLOCKS.items()}
    again[KEYS[3]] = numbers_of(99)
    driven.store(again)
    status = driven.adapter.report_status()
    assert (status["chunks_compared"], status["chunks_wrong"]) == (4, 1)
    driven.find(KEYS)
    assert driven.adapter.report_status()["chunks_found"] == 4 + 3


def test_a_server_that_is_gone_costs_hits_and_nothing_else(opened: Open) -> None:
    driven = opened(store="unix:///nowhere/s")
    assert not driven.store(BLOCKS).is_successful()
    assert driven.find(KEYS) == [False] * 4
    assert driven.load(KEYS) == [None] * 4
    driven.adapter.delete(KEYS)
    assert not driven.adapter.report_status()["is_healthy"]


def test_whatever_the_store_raises_is_a_miss(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    driven = opened()
    driven.store(BLOCKS)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    for method in ("put", "lookup", "get_into", "evict", "peek", "health"):
        monkeypatch.setattr(driven.adapter._store, method, broken)
    assert driven.find(KEYS) == [False] * 4
    assert driven.load(KEYS) == [None] * 4
    assert not driven.store(BLOCKS).is_successful()
    driven.adapter.delete(KEYS)
    status = driven.adapter.report_status()
    assert not status["is_healthy"]
    assert status["faults"] >= 4 + 1 + 4


def test_it_closes_in_time_with_work_under_way(opened: Open) -> None:
    driven = opened()
    for number in range(50):
        driven.adapter.submit_lookup_and_lock_task([key_of(number)], layouts_of())
    began_s = time.monotonic()
    driven.adapter.close()
    driven.adapter.close()
    assert time.monotonic() - began_s < 10
    gc.collect()


def test_a_setting_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="hostbytes"):
        PrefixdL2Adapter({"hostbytes": 1})
