"""LMCache's prefetch policy ``prefixd``: what would come later than the engine computes it is not loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.storage_controllers.prefetch_policy import (
    DefaultPrefetchPolicy,
    get_registered_prefetch_policies,
    register_prefetch_policy,
)
from lmcache.v1.distributed.storage_controllers.utils import Bitmap2D, MapState

from engine_adapter.lmcache.identity import layout_of, num_bytes_of
from engine_adapter.lmcache.measured import MEASURED
from engine_adapter.lmcache.prefetching import Column, num_worth_having
from engine_adapter.lmcache.second_tier import SecondTier

_log = logging.getLogger(__name__)

NAME = "prefixd"
_OURS = "engine_adapter.lmcache"


class PrefixdPrefetchPolicy(DefaultPrefetchPolicy):
    """Plans as LMCache's own default does, but may end the prefix before chunks that only our store has."""

    def plan_load(
        self,
        key_groups: Sequence[Any],
        l1_locked_keys: Any,
        l2_locked_keys: Any,
        l1_manager_descs: Mapping[int, Any],
        l2_adapter_descs: Mapping[int, Any],
        fetching_policy: str,
    ) -> Any:
        """Return the plan; see LMCache's ``PrefetchPolicy``. Never raises."""
        rest = l1_manager_descs, l2_adapter_descs, fetching_policy
        plan = super().plan_load(key_groups, l1_locked_keys, l2_locked_keys, *rest)
        if fetching_policy != "prefix":
            return plan
        try:
            num = _num_worth_having(key_groups, plan, l2_adapter_descs)
            if num is None:
                return plan
            held = (_first_columns(state, num) for state in (l1_locked_keys, l2_locked_keys))
            return super().plan_load(key_groups, *held, *rest)
        except Exception:  # noqa: BLE001 - whatever it is, LMCache goes on
            _log.exception("prefixd: a prefetch was planned without costs")
            return plan


def register() -> None:
    """Make the policy known to LMCache, once."""
    if NAME not in get_registered_prefetch_policies():
        register_prefetch_policy(NAME, PrefixdPrefetchPolicy)


def _num_worth_having(groups: Sequence[Any], plan: Any, descs: Mapping[int, Any]) -> int | None:
    """Return with how many chunks the prefix should end; ``None``: where it does."""
    for index, cells in plan.l2_planned_keys.items():
        tier = _tier_of(descs[index])
        if tier is None or not tier.prefill_tokens_per_s:
            continue
        columns = [_column(groups, cells, number, tier) for number in range(_num_planned(plan))]
        num = num_worth_having(
            columns, tier.chunk_tokens, tier.prefill_tokens_per_s, tier.costs.loads(), tier.costs.stale()
        )
        return num if num < len(columns) else None
    return None


def _tier_of(desc: Any) -> SecondTier | None:
    config = desc.config
    is_ours = getattr(config, "module_path", "").startswith(_OURS)
    return MEASURED.of(config.adapter_params) if is_ours else None


def _num_planned(plan: Any) -> int:
    """Return the number of chunks up to the last one that is planned."""
    rows = [*plan.l1_planned_keys.merge(), *plan.l2_planned_keys.merge()]
    return max((index + 1 for row in rows for index in row.get_indices_list()), default=0)


def _column(groups: Sequence[Any], cells: Any, number: int, tier: SecondTier) -> Column:
    loaded = [group for group, row in zip(groups, cells, strict=True) if row.test(number)]
    tiers = [found for group in loaded if (found := tier.locks.tier_of(group.keys[number])) is not None]
    nbytes = sum(
        num_bytes_of(layout_of(group.layout_desc.shapes, group.layout_desc.dtypes)) for group in loaded
    )
    return Column(max(tiers, key=tier.tier_names.index) if tiers else None, nbytes)


def _first_columns(state: Any, num: int) -> Any:
    """Return a map with nothing but the first ``num`` columns of another."""
    cut = MapState()
    for index, grid in state.items():
        cut[index] = Bitmap2D([row & Bitmap(len(row), num) for row in grid])
    return cut
