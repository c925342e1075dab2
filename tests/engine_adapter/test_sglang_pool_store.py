from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.sglang import pool_store as pool_store_module
from engine_adapter.sglang.counts import Counts
from engine_adapter.sglang.identity import scoped
from engine_adapter.sglang.loads import load_each
from engine_adapter.sglang.memory import at_address, of_tensor
from engine_adapter.sglang.opening import MOST_ON_WAY, most_on_way, on_way_bytes, open_store
from engine_adapter.sglang.pool_store import Kind, PoolStore
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.loading import LoadedBlock, Ticket
from kvstore.namespace import Namespace
from kvstore.store import TieredStore

PAGE_BYTES = 4096
KIND = Kind(Namespace("weights", "{}", "float32", "float32", block_tokens=4), PAGE_BYTES, torch.float32)
SETTINGS = AdapterSettings(host_bytes=1 << 20)


@pytest.fixture
def store() -> Iterator[TieredStore]:
    opened = open_store(SETTINGS, "rank", [PAGE_BYTES])
    assert isinstance(opened, TieredStore)
    yield opened
    opened.check()
    assert opened.num_holds == 0
    opened.close()


def pool_store(store: TieredStore, counts: Counts | None = None, **settings: Any) -> PoolStore:
    return PoolStore(store, KIND, AdapterSettings(**settings), counts or Counts())


def keys(num: int) -> list[str]:
    return [f"page {number}" for number in range(num)]


def page(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).standard_normal(PAGE_BYTES // 4).astype(np.float32)


def pieces(array: np.ndarray[Any, Any], num: int = 2) -> list[memoryview]:
    """Return an array's memory in pieces, last piece first: an order as good as any."""
    whole = memoryview(array.data).cast("B")
    step = len(whole) // num
    return [whole[start : start + step] for start in reversed(range(0, len(whole), step))]


def put(pages: PoolStore, num: int, before: Sequence[str] = ()) -> list[bool]:
    return pages.put(keys(num), [pieces(page(number)) for number in range(num)], before)


def loaded(pages: PoolStore, num: int) -> list[np.ndarray[Any, Any] | None]:
    targets = [np.zeros(PAGE_BYTES // 4, np.float32) for _ in range(num)]
    came = pages.load(keys(num), [pieces(target) for target in targets])
    assert all(has_come or not target.any() for has_come, target in zip(came, targets, strict=True))
    return [target if has_come else None for has_come, target in zip(came, targets, strict=True)]


def test_pages_in_pieces_come_back_in_place(store: TieredStore) -> None:
    pages, num = pool_store(store), 3 * MOST_ON_WAY
    assert put(pages, num) == [True] * num
    for number, came in enumerate(loaded(pages, num)):
        assert came is not None
        assert np.array_equal(came, page(number))


def test_few_pages_of_a_batch_are_on_their_way_at_a_time(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    num = 3 * MOST_ON_WAY
    put(pool_store(store), num)
    begun: list[int] = []
    load = store.load

    def counted(hit: Any, index: int, deadline_s: float) -> Any:
        begun.append(index)
        return load(hit, index, deadline_s)

    monkeypatch.setattr(store, "load", counted)
    landed: list[int] = []
    most = 0

    def land(index: int, _block: LoadedBlock) -> None:
        nonlocal most
        most = max(most, len(begun) - len(landed))
        landed.append(index)

    load_each(store, scoped(KIND.namespace, keys(num)), land, 10.0, None, MOST_ON_WAY)
    assert begun == landed == list(range(num))
    assert most == MOST_ON_WAY


def test_of_long_pages_fewer_are_on_their_way() -> None:
    assert [most_on_way(mib << 20) for mib in (1, 7, 12, 100, 500)] == [16, 16, 10, 1, 1]
    assert on_way_bytes(500 << 20) >= 3 * 500 << 20


def test_what_is_loaded_ends_where_a_page_is_missing(store: TieredStore) -> None:
    pages = pool_store(store)
    pages.put([keys(3)[0], keys(3)[2]], [pieces(page(0)), pieces(page(2))])
    assert pages.present(keys(3)) == [True, False, True]
    assert [came is not None for came in loaded(pages, 3)] == [True, False, False]


def test_after_a_miss_what_is_still_on_its_way_is_given_back(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, load = pool_store(store), store.load
    put(pages, 8)

    def lose_the_second(hit: Any, index: int, deadline_s: float) -> Any:
        return Ticket.of(None) if index == 1 else load(hit, index, deadline_s)

    monkeypatch.setattr(store, "load", lose_the_second)
    assert [came is not None for came in loaded(pages, 8)] == [True] + [False] * 7


def test_a_page_of_another_length_is_neither_stored_nor_loaded(store: TieredStore) -> None:
    pages = pool_store(store)
    with pytest.raises(ValueError, match="a page of 8 bytes where all have 4096"):
        pages.put(keys(1), [pieces(np.zeros(2, np.float32))])
    put(pages, 1)
    assert pages.load(keys(1), [pieces(np.zeros(2, np.float32))]) == [False]


def test_pages_that_cannot_be_read_give_their_memory_back(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages, source = pool_store(store), [pieces(page(0))]
    with monkeypatch.context() as patch:
        patch.setattr(pool_store_module, "gather", lambda *_: 1 / 0)
        for key in keys(1000):
            with pytest.raises(ZeroDivisionError):
                pages.put([key], source)
    assert pages.put(keys(1), source) == [True]


def test_what_is_there_counts_as_stored(store: TieredStore) -> None:
    counts = Counts()
    pages = pool_store(store, counts)
    assert put(pages, 2) == put(pages, 2) == [True, True]
    assert counts.all()["pages_stored"] == 4
    assert store.statistics().tiers[1].num_blocks == 2


def test_a_page_that_finds_no_room_counts_as_refused() -> None:
    counts = Counts()
    small = open_store(AdapterSettings(host_bytes=PAGE_BYTES // 2), "rank", [PAGE_BYTES // 2])
    pages = PoolStore(small, KIND, SETTINGS, counts)
    assert put(pages, 1) == [False]
    assert counts.all()["pages_refused"] == 1
    small.close()


def test_tiers_without_room_for_a_page_are_refused() -> None:
    with pytest.raises(ConfigError, match=f"host_bytes: 16 hold no block, which takes {PAGE_BYTES}"):
        open_store(AdapterSettings(host_bytes=16), "rank", [PAGE_BYTES])
    with pytest.raises(ConfigError, match="disk_bytes"):
        open_store(AdapterSettings(disk_bytes=16), "rank", [PAGE_BYTES])


@pytest.mark.parametrize("host_bytes", [0, 4 * PAGE_BYTES, 1 << 24])
def test_more_pages_than_may_be_on_their_way_are_all_stored(tmp_path: Path, host_bytes: int) -> None:
    settings = AdapterSettings(host_bytes=host_bytes, disk_bytes=1 << 24, disk_path=str(tmp_path))
    slow = open_store(settings, "rank", [PAGE_BYTES])
    pages, num = PoolStore(slow, KIND, settings, Counts()), 40 * MOST_ON_WAY
    assert put(pages, num) == [True] * num
    slow.clear()
    assert slow.flush(10.0)
    assert put(pages, num) == [True] * num, "those that were there once, too"
    assert slow.flush(10.0)
    assert slow.statistics().tiers[-1].num_blocks == num
    slow.close()


def test_a_batch_waits_for_room_no_longer_than_it_may(
    store: TieredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, waits = 0.0, []

    def flush(timeout_s: float) -> bool:
        nonlocal now_s
        waits.append(timeout_s)
        now_s += timeout_s
        return False

    monkeypatch.setattr(store, "now_s", lambda: now_s)
    monkeypatch.setattr(store, "reserve", lambda *_, **__: None)
    monkeypatch.setattr(store, "flush", flush)
    assert put(pool_store(store), 8) == [False] * 8
    assert waits == [5.0]


def test_ends_of_prompts_are_evicted_before_their_beginnings() -> None:
    small = open_store(AdapterSettings(host_bytes=4 * PAGE_BYTES), "rank", [PAGE_BYTES])
    pages = PoolStore(small, KIND, SETTINGS, Counts())
    put(pages, 4)
    pages.put(["another"], [pieces(page(9))])
    assert pages.present(keys(4)) == [True, True, True, False]
    small.close()


def test_a_page_is_stored_after_the_one_before_it(store: TieredStore) -> None:
    put(pool_store(store), 2, before=["first", "second"])
    names = scoped(KIND.namespace, ["second", *keys(2)])
    hit = store.lookup(names[1:])
    assert [record.parent for record in hit.records] == names[:2]
    assert [record.first_token for record in hit.records] == [8, 12]
    hit.release()


def test_mode_off_stores_nothing_and_finds_nothing(store: TieredStore) -> None:
    put(pool_store(store), 2)
    off = pool_store(store, mode="off")
    assert off.present(keys(2)) == [False, False]
    assert loaded(off, 2) == [None, None]
    assert off.put(["new"], [pieces(page(7))]) == [True]
    assert pool_store(store).present(["new"]) == [False]


def test_mode_observe_stores_and_counts(store: TieredStore) -> None:
    counts = Counts()
    observer = pool_store(store, counts, mode="observe")
    put(observer, 2)
    assert observer.present(keys(3)) == [False] * 3
    assert (counts.all()["pages_looked_up"], counts.all()["pages_found"]) == (3, 2)
    assert loaded(observer, 2) == [None, None]
    assert pool_store(store).present(keys(2)) == [True, True]


def test_mode_verify_checks_a_share_and_serves_the_rest(store: TieredStore) -> None:
    counts = Counts()
    verifier = pool_store(store, counts, mode="verify", verify_share=0.5)
    put(verifier, 2)
    assert verifier.present(keys(2)) == [True, True]
    assert verifier.present(keys(2)) == [False, False]
    wrong = [pieces(page(number)) for number in (0, 7)]
    assert verifier.put(keys(2), wrong) == [True, False]
    assert (counts.all()["pages_compared"], counts.all()["pages_wrong"]) == (2, 1)
    assert verifier.present(keys(2)) == [True, False]


def test_what_is_not_a_number_is_not_close(store: TieredStore) -> None:
    counts = Counts()
    verifier = pool_store(store, counts, mode="verify", verify_share=1.0)
    put(verifier, 1)
    verifier.present(keys(1))
    verifier.put(keys(1), [pieces(np.full(PAGE_BYTES // 4, np.nan, np.float32))])
    assert counts.all()["pages_wrong"] == 1


def test_a_disk_tier_that_another_process_uses_is_refused(tmp_path: Path) -> None:
    settings = AdapterSettings(disk_bytes=1 << 20, disk_path=str(tmp_path))
    first = open_store(settings, "tp0", [PAGE_BYTES])
    with pytest.raises(ConfigError, match="disk_path"):
        open_store(settings, "tp0", [PAGE_BYTES])
    open_store(settings, "tp1", [PAGE_BYTES]).close()
    first.close()


def test_memory_of_a_tensor_is_the_tensor_s() -> None:
    tensor = torch.arange(4, dtype=torch.bfloat16)
    of_tensor(tensor)[:2] = of_tensor(tensor)[6:]
    assert tensor.tolist() == [3, 1, 2, 3]
    assert at_address(tensor.data_ptr(), 8) == of_tensor(tensor)
    with pytest.raises(ValueError, match="contiguous"):
        of_tensor(torch.zeros(4, 4).T)


def test_news_are_told_once_a_minute_if_there_are_any() -> None:
    counts = Counts()
    counts.count("pages_found", 2)
    assert counts.news(0.0) == "pages found: 2"
    counts.count("pages_loaded")
    assert counts.news(59.0) is None
    assert counts.news(60.0) == "pages found: 2, pages loaded: 1"
    assert counts.news(500.0) is None
