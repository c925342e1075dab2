"""What of the LMCache adapter needs no LMCache; the rest is in ``tests/engines/lmcache``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_adapter.lmcache.closeness import is_close
from engine_adapter.lmcache.costs import LoadCosts
from engine_adapter.lmcache.identity import Identity, Layout, Namespaces, layout_of, num_bytes_of
from engine_adapter.lmcache.locks import Locks
from engine_adapter.lmcache.opening import open_store
from engine_adapter.lmcache.predecessors import Predecessors
from engine_adapter.lmcache.prefetching import Column, num_worth_having
from engine_adapter.lmcache.second_tier import COUNTS, Chunk, Kept, SecondTier
from engine_adapter.lmcache.settings import AdapterSettings
from engine_adapter.lmcache.tasks import Tasks
from kvstore.errors import ConfigError
from policies.cost_model import LoadCost

LAYOUT = layout_of([(2, 2, 16, 64)], ["torch.bfloat16"])
NBYTES = num_bytes_of(LAYOUT)
RANK_1_OF_4 = 4 << 24 | 1 << 16 | 4 << 8 | 1


@dataclass(frozen=True)
class Key:
    """As LMCache's ``ObjectKey``."""

    chunk_hash: bytes = b"hash"
    model_name: str = "model"
    kv_rank: int = RANK_1_OF_4
    object_group_id: int = 0
    cache_salt: str = ""


def tier_of(**settings: Any) -> SecondTier:
    given_ = AdapterSettings.parse({"host_bytes": 1 << 20, "staging_bytes": 1 << 20, **settings})
    return SecondTier(open_store(given_), given_, "0.5.6", is_close)


def chunk(key: Key, fill: int = 1) -> Chunk:
    return Chunk(key, LAYOUT, memoryview(bytearray([fill]) * NBYTES))


def test_a_chunk_is_kept_found_and_loaded() -> None:
    tier = tier_of()
    keys = [Key(bytes([number])) for number in range(3)]
    assert [tier.keep(chunk(key)) for key in keys] == [Kept.NEW] * 3
    assert tier.keep(chunk(keys[0])) is Kept.KNOWN
    assert tier.find([*keys, Key(b"absent")], {0: LAYOUT}) == [True, True, True, False]
    landed = chunk(keys[1], fill=0)
    assert tier.load(landed)
    assert bytes(landed.data) == bytes([1]) * NBYTES
    tier.locks.unlock(keys)
    assert len(tier.locks) == 0


@pytest.mark.parametrize("host_bytes", [0, NBYTES - 1, 1 << 20])
def test_what_was_kept_is_told_once_it_can_be_found(tmp_path: Path, host_bytes: int) -> None:
    tier = tier_of(host_bytes=host_bytes, disk_bytes=1 << 20, disk_path=str(tmp_path))
    kept, absent = Key(b"kept"), Key(b"absent")
    tier.keep(chunk(kept))
    places = [place for key in (kept, absent) if (place := tier.place(key, LAYOUT)) is not None]
    assert tier.settle(places) == [True, False]
    assert tier.are_here(places) == [True, False]


@pytest.mark.parametrize("host_bytes", [0, 1 << 23])
def test_more_chunks_than_a_disk_queues_are_all_on_it(tmp_path: Path, host_bytes: int) -> None:
    given = AdapterSettings(host_bytes=host_bytes, disk_bytes=1 << 24, disk_path=str(tmp_path))
    store = open_store(given)
    tier, num = SecondTier(store, given, "0.5.6", is_close), 600
    assert all(tier.keep(chunk(Key(number.to_bytes(2, "big")))) is Kept.NEW for number in range(num))
    assert store.flush(10.0)
    assert store.statistics().tiers[-1].num_blocks == num
    store.close()


def test_a_chunk_of_another_length_is_a_miss() -> None:
    tier = tier_of()
    tier.keep(chunk(Key()))
    assert not tier.load(Chunk(Key(), LAYOUT, memoryview(bytearray(NBYTES - 1))))


def test_a_lookup_without_layouts_takes_the_one_seen_last() -> None:
    tier = tier_of()
    assert tier.find([Key()], {}) == [False]
    tier.keep(chunk(Key()))
    assert tier.find([Key()], {}) == [True]


@pytest.mark.parametrize(
    "other",
    [
        {"chunk_hash": b"other"},
        {"model_name": "other"},
        {"kv_rank": 4 << 24 | 2 << 16 | 4 << 8 | 2},
        {"kv_rank": 8 << 24 | 1 << 16 | 8 << 8 | 1},
        {"object_group_id": 1},
        {"cache_salt": "secret"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_keys_that_differ_share_nothing(other: dict[str, Any]) -> None:
    tier = tier_of()
    tier.keep(chunk(Key()))
    key = replace(Key(), **other)
    assert tier.find([key], {0: LAYOUT, 1: LAYOUT}) == [False]
    assert not tier.load(chunk(key))


def test_a_namespace_holds_what_their_keys_leave_out() -> None:
    identity = Identity("0.5.6", 256, "")
    namespace = identity.namespace(Key(), LAYOUT)
    assert (namespace.tp_rank, namespace.tp_size, namespace.block_tokens) == (1, 4, 256)
    assert namespace.kv_dtype == "bfloat16"
    assert namespace.layout == "lmcache bfloat16[2,2,16,64]"
    others = [
        identity.namespace(Key(), LAYOUT._replace(dtypes=("float16",))),
        identity.namespace(Key(), LAYOUT._replace(shapes=((2, 2, 64, 16),))),
        replace(identity, version="0.5.7").namespace(Key(), LAYOUT),
        replace(identity, chunk_tokens=128).namespace(Key(), LAYOUT),
        replace(identity, weights="fine-tuned").namespace(Key(), LAYOUT),
        identity.namespace(replace(Key(), cache_salt="secret"), LAYOUT),
    ]
    digests = {other.digest for other in others}
    assert len(digests) == 6
    assert namespace.digest not in digests
    assert "secret" not in others[-1].manifest()


def test_namespaces_are_made_once_and_bounded() -> None:
    known = Namespaces(Identity("0.5.6", 256, ""))
    assert known.of(Key(), None) is None
    assert known.of(Key(), LAYOUT) is known.of(Key(), None)
    for number in range(5000):
        known.of(replace(Key(), cache_salt=str(number)), LAYOUT)
    assert len(known._known) == 4096


@pytest.mark.parametrize(
    ("layout", "nbytes"),
    [
        (Layout(((2, 3),), ("float8_e4m3fn",)), 6),
        (Layout(((2, 3),), ("bfloat16",)), 12),
        (Layout(((2, 3), (4,)), ("float32", "uint8")), 28),
        (Layout(((5,),), ("bool",)), 5),
    ],
)
def test_lengths_of_layouts(layout: Layout, nbytes: int) -> None:
    assert num_bytes_of(layout) == nbytes


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=30))
def test_locks_last_until_they_are_unlocked_as_often(steps: list[tuple[int, bool]]) -> None:
    tier, locks = tier_of(), Locks()
    keys = [Key(bytes([number])) for number in range(4)]
    for key in keys:
        tier.keep(chunk(key))
    places = [tier.place(key) for key in keys]
    held = [0] * 4
    for number, is_locked in steps:
        place = places[number]
        assert place is not None
        if is_locked:
            locks.add(tier._store.lookup([place.key]), [keys[number]])
            held[number] += 1
        else:
            locks.unlock([keys[number]])
            held[number] = max(0, held[number] - 1)
        tier.delete([each for each in places if each is not None])
        is_here = tier.are_here([each for each in places if each is not None])
        assert all(is_here[index] for index, num in enumerate(held) if num)
        for index, key in enumerate(keys):
            if not is_here[index]:
                tier.keep(chunk(key))
    locks.end()
    assert tier._store.evict([place.key for place in places if place]) == 4


def test_a_lock_lasts_a_minute() -> None:
    tier, key = tier_of(), Key()
    tier.keep(chunk(key))
    tier.find([key], {0: LAYOUT})
    (lock,) = tier.locks._locks[key]
    assert lock.lease.hit.deadline_s - tier._store.now_s() == pytest.approx(60.0, abs=5.0)


def test_the_end_of_a_prompt_goes_before_its_beginning() -> None:
    tier = tier_of(host_bytes=8 * NBYTES)
    prompt = [Key(bytes([0, number])) for number in range(8)]
    tier.find(prompt, {0: LAYOUT})
    for key in reversed(prompt):
        tier.keep(chunk(key))
    for number in range(4):
        tier.keep(chunk(Key(bytes([1, number]))))
    assert tier.find(prompt, {0: LAYOUT}) == [True] * 4 + [False] * 4


def test_what_follows_a_wrong_chunk_is_kept_out_with_it() -> None:
    tier = tier_of(mode="verify", verify_share=1.0)
    prompt = [Key(bytes([0, number])) for number in range(3)]
    tier.find(prompt, {0: LAYOUT})
    for key in prompt:
        tier.keep(chunk(key, fill=60))
    assert tier.find(prompt, {0: LAYOUT}) == [False] * 3
    assert tier.keep(chunk(prompt[1], fill=61)) is Kept.REFUSED
    tier.find(prompt, {0: LAYOUT})
    assert tier.counts["chunks_found"] == 3 + 1
    assert tier.counts["chunks_wrong"] == 1


def test_of_too_many_predecessors_the_oldest_are_forgotten() -> None:
    known = Predecessors(2)
    known.learn([b"a", b"b", b"c", b"d"])
    assert [known.of(key) for key in (b"a", b"b", b"c", b"d")] == [b"", b"", b"b", b"c"]


def test_mode_verify_computes_every_so_many_lookups_again() -> None:
    tier = tier_of(mode="verify", verify_share=0.5)
    tier.keep(chunk(Key()))
    assert [tier.find([Key()], {0: LAYOUT})[0] for _ in range(4)] == [True, False, True, False]


def test_closeness_is_up_to_rounding() -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.randn(2, 2, 16, 64).bfloat16()

    def view(tensor: Any) -> memoryview:
        return memoryview(tensor.view(torch.uint8).flatten().numpy()).cast("B")

    def other(change: Any) -> memoryview:
        return view(change(numbers.clone()))

    assert is_close(LAYOUT, view(numbers), other(lambda tensor: tensor * 1.01))
    assert not is_close(LAYOUT, view(numbers), other(lambda tensor: tensor.flip(0)))

    def spoilt(tensor: Any) -> Any:
        tensor[1, 1, 3, 5] = float("nan")
        return tensor

    assert not is_close(LAYOUT, view(numbers), other(spoilt))
    assert is_close(LAYOUT._replace(dtypes=("int8",)), view(numbers), view(numbers)) is None


def tasks_of(num_workers: int = 4) -> tuple[Tasks[list[Any]], Event]:
    told = Event()
    return Tasks[list[Any]]("test", num_workers, told.set), told


@pytest.mark.parametrize("parts", [[], [1], list(range(100))])
def test_a_task_tells_of_all_its_parts_once(parts: Sequence[int]) -> None:
    tasks, told = tasks_of()
    number = tasks.submit(parts, lambda part: part * 2, -1, list)
    assert told.wait(10)
    assert tasks.take(number) == [part * 2 for part in parts]
    assert tasks.take(number) is None
    assert tasks.close(10)


def test_after_the_end_tasks_are_done_at_once_with_none_of_their_parts() -> None:
    tasks, told = tasks_of()
    tasks.close(10)
    number = tasks.submit([1, 2], lambda part: part, -1, list)
    assert told.is_set()
    assert tasks.take(number) == [-1, -1]


def test_closing_waits_for_what_was_begun_and_begins_nothing_more() -> None:
    tasks, _ = tasks_of(1)
    begun, go_on, done = Event(), Event(), list[int]()

    def work(part: int) -> int:
        begun.set()
        go_on.wait(10)
        done.append(part)
        return part

    tasks.submit([1, 2], work, -1, list)
    tasks.submit([3], work, -1, list)
    assert begun.wait(10)
    assert not tasks.close(0.01)
    go_on.set()
    assert tasks.close(10)
    assert done == [1]


def test_costs_are_learnt_from_what_arrives() -> None:
    clock = [0.0]
    costs = LoadCosts(lambda: clock[0])
    assert costs.loads() == {}
    for _ in range(3):
        asked = costs.ask("disk", 1 << 20)
        clock[0] += 0.01
        costs.end(asked, has_arrived=True)
    assert costs.loads()["disk"].load_s(1 << 20) == pytest.approx(0.01, rel=0.1)
    assert costs.stale() == frozenset()
    clock[0] += 60
    assert costs.stale() == {"disk"}


ON_DISK = [Column(None, 0)] * 2 + [Column("disk", 1 << 20)] * 6


@pytest.mark.parametrize(
    ("prefill_tokens_per_s", "bytes_per_s", "num"),
    [
        pytest.param(0.0, 1.0, 8, id="what computing costs is not known"),
        pytest.param(1e3, 1e9, 8, id="loading is faster"),
        pytest.param(1e6, 1e6, 2, id="computing is faster"),
    ],
)
def test_chunks_that_come_later_than_they_are_computed_are_left(
    prefill_tokens_per_s: float, bytes_per_s: float, num: int
) -> None:
    loads = {"disk": LoadCost(0.0, bytes_per_s)}
    assert num_worth_having(ON_DISK, 256, prefill_tokens_per_s, loads, ()) == num


def test_a_slow_tier_is_tried_now_and_then() -> None:
    loads = {"disk": LoadCost(0.0, 1e6)}
    assert num_worth_having(ON_DISK, 256, 1e6, loads, {"disk"}) == 3
    assert num_worth_having(ON_DISK, 256, 1e6, {}, ()) == 8, "one that was never measured"


def test_the_prefix_may_end_where_a_slower_tier_begins() -> None:
    columns = [Column("host", 1 << 20)] * 3 + [Column("redis", 1 << 20)] * 3
    loads = {"host": LoadCost(0.0, 1e10), "redis": LoadCost(0.0, 1e6)}
    assert num_worth_having(columns, 256, 1e5, loads, ()) == 3


def test_a_disk_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = AdapterSettings(disk_bytes=1 << 20, disk_path=str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="disk_path"):
        open_store(settings)


def test_the_page_tells_of_every_count() -> None:
    page = (Path(__file__).parents[2] / "docs" / "lmcache.md").read_text(encoding="utf-8")
    assert tuple(tier_of().counts) == COUNTS
    assert [name for name in COUNTS if f"`{name}`" not in page] == []
