"""Parts of the vLLM connector by themselves: the pool, events, probes, faults, what is learnt of steps."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.engine.costs import CostBook
from engine_adapter.vllm.announcing import Announcer, Cleared, Removed, Stored
from engine_adapter.vllm.deciding import Decider, Sizes, work_of
from engine_adapter.vllm.opening import OpenStores
from engine_adapter.vllm.orders import Arrived, GivenUp, Told
from engine_adapter.vllm.pool import Pool
from engine_adapter.vllm.probing import Prober
from engine_adapter.vllm.settings import AdapterSettings
from engine_adapter.vllm.tracking import Tracked
from kvstore.arena import Arena
from kvstore.errors import ConfigError
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from policies.cost_model import Work
from policies.lines import Arrival
from policies.reload import Measured
from tests.engine_adapter.rig import host_tier, slow_tier
from tests.engine_adapter.vllm_rig import BLOCK, request

NAMESPACE = Namespace("w", "{}", "bfloat16", "bfloat16", BLOCK)


@pytest.fixture
def store() -> Iterator[TieredStore]:
    arena = Arena(2**22)
    opened = TieredStore([host_tier(arena, 2**20)], arena)
    yield opened
    opened.close()


def test_a_block_that_is_read_and_written_is_the_same() -> None:
    caches = {name: torch.randn(6, 2, 3).to(torch.bfloat16) for name in ("a", "b")}
    pool = Pool(caches, 6)
    data = memoryview(bytearray(pool.block_bytes))
    pool.read(2, data)
    pool.write(4, data)
    assert all(torch.equal(cache[2], cache[4]) for cache in caches.values())
    assert pool.is_close(4, data)
    assert not pool.is_close(1, data)


def test_full_numbers_may_differ_less_than_half_ones() -> None:
    for dtype, is_close in ((torch.bfloat16, True), (torch.float32, False)):
        pool = Pool({"a": torch.ones(2, 4, dtype=dtype)}, 2)
        data = memoryview(bytearray(pool.block_bytes))
        pool.read(0, data)
        torch.frombuffer(data, dtype=dtype).mul_(1.01)
        assert pool.is_close(0, data) == is_close


def test_a_number_that_is_none_is_close_to_nothing() -> None:
    cache = torch.ones(2, 4)
    pool = Pool({"a": cache}, 2)
    data = memoryview(bytearray(pool.block_bytes))
    pool.read(0, data)
    cache[0, 0] = float("nan")
    assert not pool.is_close(0, data)


def test_a_block_may_be_several_of_the_kernel() -> None:
    cache = torch.arange(12.0).reshape(6, 2)
    pool = Pool({"a": cache}, 3)
    data = memoryview(bytearray(pool.block_bytes))
    pool.read(1, data)
    assert torch.frombuffer(data, dtype=torch.float32).tolist() == [4, 5, 6, 7]


def test_layers_that_share_a_cache_are_kept_once() -> None:
    cache = torch.zeros(4, 2)
    assert Pool({"a": cache, "b": cache, "c": cache.clone()}, 4).block_bytes == 2 * 8


@pytest.mark.parametrize("caches", [{"a": torch.zeros(5, 2)}, {"a": [torch.zeros(4, 2)]}])
def test_a_cache_of_another_kind_is_refused(caches: Any) -> None:
    with pytest.raises(ConfigError):
        Pool(caches, 4)


def tracked(num_tokens: int, **facts: Any) -> Tracked:
    made = Tracked(request(range(3, 3 + num_tokens), **facts), [NAMESPACE])
    made.make_keys()
    return made


def test_events_tell_what_is_stored_found_gone_and_cleared(store: TieredStore) -> None:
    announcer, asked = Announcer(store, _asked_s=store.now_s()), tracked(3 * BLOCK)
    announcer.ordered(asked, 0, 3)
    announcer.stored(asked.keys[0][:2])
    hashes = asked.request.block_hashes
    first, second = (event for event in announcer.take() if isinstance(event, Stored))
    assert (first.hash, first.parent, list(first.tokens)) == (hashes[0], None, [3, 4, 5, 6])
    assert (second.hash, second.parent) == (hashes[1], hashes[0])

    asked.present = {1, 2}
    announcer.found(asked)
    assert [event.hash for event in announcer.take() if isinstance(event, Stored)] == [hashes[2]]

    announcer._asked_s = 0.0  # nothing of this is in the store
    assert {event.hash for event in announcer.take() if isinstance(event, Removed)} == set(hashes)
    announcer.cleared()
    assert [type(event) for event in announcer.take()] == [Cleared]


def test_an_adapter_is_told_in_events(store: TieredStore) -> None:
    lora = SimpleNamespace(lora_name="sql", lora_int_id=7)
    announcer, asked = Announcer(store, _asked_s=store.now_s()), tracked(BLOCK, lora_request=lora)
    announcer.ordered(asked, 0, 1)
    announcer.stored(asked.keys[0])
    (event,) = announcer.take()
    assert isinstance(event, Stored)
    assert event.lora == ("sql", 7)


def test_a_probe_learns_what_a_tier_takes_and_gives_all_back() -> None:
    arena = Arena(2**22)
    store = TieredStore(slow_tier([])(arena), arena)
    asked = tracked(4 * BLOCK)
    for index, key in enumerate(asked.keys[0]):
        store.put(NAMESPACE, key, asked.parents_of(index)[0], memoryview(bytes(64)))
    assert store.flush(5)
    prober = Prober(store, 64)
    prober.probe(asked.keys[0], ["disk"] * 4, frozenset(["disk"]))
    prober.probe(asked.keys[0], ["disk"] * 4, frozenset(["disk"]))
    arrived: list[Any] = []
    while len(arrived) < 2:
        arrived += prober.arrivals().get("disk", [])
    assert all(arrival.arrived_s >= arrival.asked_s for arrival in arrived)
    assert prober.arrivals() == {}
    assert store.evict(asked.keys[0]) == 4
    prober.close()
    store.close()


def decider() -> Decider:
    return Decider(Measured(), CostBook(100, "host"), Sizes(10, 100, 64))


def test_what_a_step_takes_is_learnt_without_the_loads_it_waited_for() -> None:
    made = decider()
    for number in range(5):
        at_s = number * 10.0
        step = made.note_planned(Work.prefill(0, 100), at_s)
        made.note_made(Told(step, waited_s=3.0), at_s + 5.0)
    cost = made.costs.compute()
    assert cost is not None
    assert cost.of(Work.prefill(0, 100)) == pytest.approx(2.0)


def test_a_step_that_was_planned_while_another_was_made_takes_from_its_end_on() -> None:
    made = decider()
    for number in range(5):
        steps = [made.note_planned(Work.prefill(0, 100), number * 10.0) for _ in range(2)]
        made.note_made(Told(steps[0]), number * 10.0 + 4.0)
        made.note_made(Told(steps[1]), number * 10.0 + 8.0)
    cost = made.costs.compute()
    assert cost is not None
    assert cost.of(Work.prefill(0, 100)) == pytest.approx(4.0)


def test_steps_of_one_size_refuse_no_hit() -> None:
    made = decider()
    for number in range(5):
        step = made.note_planned(Work.prefill(0, 100), number * 10.0)
        made.note_made(Told(step), number * 10.0 + 5.0)
    arrived = [Arrived("disk", 60.0, 60.0 + 0.001 * (index + 1), 100) for index in range(20)]
    made.note_made(Told(arrived=arrived), 61.0)
    leading = made.decide(["disk"] * 10, 0, 101, 62.0)
    assert leading.num_blocks == 10
    assert leading.if_computed_s == pytest.approx(5.05)


def test_a_step_that_nobody_told_of_is_passed_over() -> None:
    made = decider()
    made.note_planned(Work.prefill(0, 100), 0.0)
    later = made.note_planned(Work.prefill(0, 100), 50.0)
    made.note_made(Told(later), 51.0)
    cost = made.costs.compute()
    assert cost is not None
    assert cost.of(Work.prefill(0, 100)) == pytest.approx(1.0)


def test_a_tier_that_stalls_is_not_loaded_from_any_more() -> None:
    made = decider()
    for number in range(4):
        step = made.note_planned(Work.prefill(0, 100), number * 10.0)
        made.note_made(Told(step), number * 10.0 + 1.0)
    arrived = [Arrived("disk", 30.0, 30.0 + 0.001 * (index + 1), 100) for index in range(20)]
    made.note_made(Told(arrived=arrived), 31.0)
    assert made.decide(["disk"] * 9, 0, 100, 31.0).num_blocks == 9
    for at_s in (32.0, 34.0, 36.0):
        lost = [GivenUp("disk", at_s, at_s + 1.0, 100) for _ in range(9)]
        made.note_made(Told(given_up=lost), at_s + 1.0)
    assert made.decide(["disk"] * 9, 0, 100, 38.0).num_blocks == 0
    assert made.unheard(["disk", None], 60.0) == {"disk"}


def test_a_tier_that_lets_one_load_down_is_probed_before_the_next() -> None:
    made = decider()
    made.note_made(Told(given_up=[GivenUp("disk", 1.0, 2.0, 100)]), 2.0)
    assert made.decide(["disk"] * 9, 0, 100, 3.0).num_blocks == 0
    assert made.unheard(["disk"] * 9, 3.0) == {"disk"}
    made.learn_arrivals({"disk": [Arrival(3.0, 3.001, 100)]})
    assert made.decide(["disk"] * 9, 0, 100, 4.0).num_blocks == 9


def test_the_work_of_a_step_is_that_of_its_requests() -> None:
    work = work_of([(0, 10), (100, 101), (50, 51), (0, 1)])
    assert (work.tokens, work.decodes, work.context) == (11, 2, 152)


def test_both_sides_share_a_store_and_the_last_one_closes_it() -> None:
    stores, settings = OpenStores(), AdapterSettings(host_bytes=2**20)
    one, other = stores.open("engine", settings, 64), stores.join("engine", settings, 64)
    assert one is other
    stores.close("engine")
    assert one.put(NAMESPACE, b"k" * 16, b"", memoryview(bytes(64)))
    stores.close("engine")
    assert not one.put(NAMESPACE, b"l" * 16, b"", memoryview(bytes(64)))


def test_a_worker_serves_its_store_to_the_engines_other_processes() -> None:
    here, there, settings = OpenStores(), OpenStores(), AdapterSettings(host_bytes=2**20)
    own = here.open("an engine", settings, 64, is_served=True)
    other = there.join("an engine", settings, 64)
    assert own.put(NAMESPACE, b"k" * 16, b"", memoryview(bytes(64)))
    hit = other.lookup([b"k" * 16])
    assert hit.tiers == ("host",)
    hit.release()
    there.close("an engine")
    here.close("an engine")


@pytest.mark.parametrize("tier", ["host_bytes", "disk_bytes"])
def test_a_tier_without_room_for_a_block_is_refused(tmp_path: Any, tier: str) -> None:
    given = {"host_bytes": 2**20, "disk_bytes": 2**20, "disk_path": str(tmp_path)} | {tier: 63}
    with pytest.raises(ConfigError) as refused:
        OpenStores().open("engine", AdapterSettings.parse(given), 64)
    assert refused.value.setting == tier


def test_a_folder_that_cannot_be_used_is_refused_at_the_start(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    settings = AdapterSettings(disk_bytes=2**20, disk_path=str(tmp_path / "file"))
    with pytest.raises(ConfigError) as refused:
        OpenStores().open("engine", settings, 64)
    assert refused.value.setting == "disk_path"
    assert refused.value.reason.startswith(str(tmp_path / "file"))


def test_tiers_without_room_for_a_block_are_refused() -> None:
    for is_served in (False, True):
        with pytest.raises(ConfigError, match="host_bytes: 16 hold no block, which takes 64"):
            OpenStores().open("engine", AdapterSettings(host_bytes=16), 64, is_served=is_served)
