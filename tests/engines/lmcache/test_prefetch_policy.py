from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import GroupedObjectKeys
from lmcache.v1.distributed.storage_controllers.prefetch_policy import (
    DefaultPrefetchPolicy,
    create_prefetch_policy,
)
from lmcache.v1.distributed.storage_controllers.utils import Bitmap2D, MapState

from engine_adapter.lmcache.prefetch_policy import register
from policies.cost_model import LoadCost
from tests.engines.lmcache.conftest import Driven, Open, key_of, layouts_of, numbers_of

NUM_CHUNKS = 6
RANKS = (0x02000200, 0x02010201)
GROUPS = [
    GroupedObjectKeys([key_of(number, rank=rank) for number in range(NUM_CHUNKS)], 0, layouts_of()[0])
    for rank in RANKS
]


def held(*columns: int) -> Any:
    """Both ranks' chunks in these columns."""
    state, rows = MapState(), [Bitmap(NUM_CHUNKS) for _ in GROUPS]
    for row in rows:
        row.batched_set(list(columns))
    state[0] = Bitmap2D(rows)
    return state


def columns_of(state: Any) -> list[list[int]]:
    return [row.get_indices_list() for row in state.merge()]


@pytest.fixture
def driven(opened: Open) -> Driven:
    """An adapter that knows how fast its engine computes, with all chunks stored and locked."""
    driven = opened(prefill_tokens_per_s=1e4)
    keys = [key for group in GROUPS for key in group.keys]
    driven.store({key: numbers_of(number) for number, key in enumerate(keys)})
    assert all(driven.find(keys))
    return driven


def planned(driven: Driven, fetching_policy: str = "prefix") -> Any:
    register()
    config = SimpleNamespace(module_path="engine_adapter.lmcache", adapter_params=driven.params)
    return create_prefetch_policy("prefixd").plan_load(
        GROUPS, held(0, 1), held(*range(NUM_CHUNKS)), {0: None}, {0: SimpleNamespace(config=config)},
        fetching_policy,
    )  # fmt: skip


def costs(driven: Driven, monkeypatch: pytest.MonkeyPatch, bytes_per_s: float) -> None:
    monkeypatch.setattr(driven.adapter._tier.costs, "loads", lambda: {"host": LoadCost(0.0, bytes_per_s)})


def test_what_loads_fast_is_loaded_as_by_their_default(
    driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    costs(driven, monkeypatch, 1e9)
    plan = planned(driven)
    default = DefaultPrefetchPolicy().plan_load(
        GROUPS, held(0, 1), held(*range(NUM_CHUNKS)), {0: None}, {0: None}, "prefix"
    )
    assert columns_of(plan.l1_planned_keys) == columns_of(default.l1_planned_keys) == [[0, 1]] * 2
    assert columns_of(plan.l2_planned_keys) == columns_of(default.l2_planned_keys) == [[2, 3, 4, 5]] * 2


def test_what_is_computed_sooner_is_left_out(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    costs(driven, monkeypatch, 1e4)
    plan = planned(driven)
    assert columns_of(plan.l1_planned_keys) == [[0, 1]] * 2
    assert columns_of(plan.l2_planned_keys) == []


def test_chunks_wanted_one_by_one_are_all_loaded(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    costs(driven, monkeypatch, 1e4)
    assert columns_of(planned(driven, "full").l2_planned_keys) == [[2, 3, 4, 5]] * 2


def test_a_fault_leaves_their_default(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(type(driven.adapter._tier.costs), "loads")
    assert columns_of(planned(driven).l2_planned_keys) == [[2, 3, 4, 5]] * 2
