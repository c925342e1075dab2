"""Dry runs under every eviction policy, with quotas, pins and leases: what they say is what happens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kvstore.admin.outcome import Kind, Outcome
from kvstore.admin.selection import BlockFilter
from kvstore.errors import PinBudgetError
from kvstore.leases import Hit
from kvstore.namespace import salt_digest
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.seams import EvictionPolicy
from kvstore.store import StoreConfig
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, Rig
from tests.kvstore.prompt_trees import NUM_NODES, TIERS, key, namespace, nodes, policies, prefix

NUM_TENANTS = 2
UNIT = BLOCK_BYTES + 192

tenants = st.integers(0, NUM_TENANTS - 1)
tier_names = st.sampled_from(list(TIERS))


few = st.one_of(
    st.builds(
        lambda tenant, some: BlockFilter(keys=tuple(key(tenant, node) for node in some)),
        tenants,
        st.lists(nodes, min_size=1, max_size=8),
    ),
    st.builds(
        lambda tenant, node: BlockFilter(prefix=key(tenant, node)),
        tenants,
        st.integers(4, NUM_NODES),
    ),
)
selections = st.one_of(
    few,
    few,
    st.builds(lambda tenant: BlockFilter(tenant=namespace(tenant).salt), tenants),
    st.builds(lambda tenant, node: BlockFilter(prefix=key(tenant, node)), tenants, nodes),
    st.builds(lambda tier: BlockFilter(tier=tier), tier_names),
    st.builds(lambda is_pinned: BlockFilter(is_pinned=is_pinned), st.booleans()),
    st.just(BlockFilter(min_idle_s=3.0)),
)


class Operated(RuleBasedStateMachine):
    """A store in an operator's hands: before each operation, what a dry run says of it."""

    make_policy: Callable[[], EvictionPolicy]

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.hits: list[Hit] = []

    @initialize(
        mode=st.sampled_from(WriteMode), disk_ttl_s=st.sampled_from([20.0, 1e6]),
        prompts=st.lists(nodes, min_size=3, max_size=8),
    )  # fmt: skip
    def open(self, mode: WriteMode, disk_ttl_s: float, prompts: list[int]) -> None:
        self.store = self.rig.open(
            host_blocks=TIERS["host"], disk_blocks=TIERS["disk"], write_mode=mode,
            config=StoreConfig(
                tier_ttls_s={"disk": disk_ttl_s},
                retention=Retention(TenantRule(pin_bytes=6 * UNIT)),
            ),
            policy=type(self).make_policy,
        )  # fmt: skip
        for number, node in enumerate(prompts):
            self.put(number % NUM_TENANTS, [node])

    @rule(tenant=tenants, prompts=st.lists(nodes, min_size=1, max_size=4))
    def put(self, tenant: int, prompts: list[int]) -> None:
        for node in prompts:
            parent = b""
            for block in prefix(tenant, node):
                self.store.put(
                    namespace(tenant), block, parent, memoryview(bytes([tenant + 1]) * BLOCK_BYTES)
                )
                parent = block
        assert self.store.flush(5.0)

    @rule(tenant=tenants, node=nodes, is_kept=st.booleans())
    def look_up(self, tenant: int, node: int, is_kept: bool) -> None:
        hit = self.store.lookup(prefix(tenant, node), lease_s=1e9)
        if is_kept:
            self.hits.append(hit)
        else:
            hit.release()
        assert self.store.flush(5.0)

    @rule()
    def release(self) -> None:
        if self.hits:
            self.hits.pop(0).release()
            assert self.store.flush(5.0)

    @rule(tenant=tenants, node=nodes, tier=tier_names, for_s=st.sampled_from([5.0, 1e6]))
    def pin(self, tenant: int, node: int, tier: str, for_s: float) -> None:
        try:
            self.store.pin(prefix(tenant, node), for_s=for_s, tiers=[tier])
        except PinBudgetError:
            return

    @rule(tenant=tenants, node=nodes)
    def spare(self, tenant: int, node: int) -> None:
        self.store.foresight.spare(prefix(tenant, node))

    @rule(
        quotas=st.lists(st.dictionaries(tier_names, st.integers(0, 8)), max_size=NUM_TENANTS),
        hard_ttl_s=st.sampled_from([None, None, 30.0]),
    )
    def set_rules(self, quotas: list[dict[str, int]], hard_ttl_s: float | None) -> None:
        named = {
            salt_digest(f"tenant {tenant}"): TenantRule(
                Lifetime(hard_ttl_s=hard_ttl_s), {tier: UNIT * num for tier, num in of_tier.items()}, 6 * UNIT
            )
            for tenant, of_tier in enumerate(quotas)
        }
        self.store.set_retention(Retention(TenantRule(pin_bytes=6 * UNIT), named))

    @rule(seconds=st.sampled_from([0.5, 1.0, 6.0]))
    def tick(self, seconds: float) -> None:
        self.rig.now_s += seconds
        self.store.lookup([]).release()

    @rule(wanted=few, tiers=st.none() | st.lists(tier_names, min_size=1, max_size=1))
    def evict(self, wanted: BlockFilter, tiers: list[str] | None) -> None:
        foretold = self.store.admin.evict(wanted, tiers, dry_run=True)
        self.holds_what_it_says(foretold, self.store.admin.evict(wanted, tiers))

    @rule(wanted=selections, source=st.none() | tier_names, into=tier_names)
    def move(self, wanted: BlockFilter, source: str | None, into: str) -> None:
        if source == into:
            return
        foretold = self.store.admin.move(wanted, source, into, dry_run=True)
        self.holds_what_it_says(foretold, self.store.admin.move(wanted, source, into))

    @rule(wanted=selections, into=tier_names)
    def warm(self, wanted: BlockFilter, into: str) -> None:
        foretold = self.store.admin.warm(wanted, into, dry_run=True)
        self.holds_what_it_says(foretold, self.store.admin.warm(wanted, into))

    def holds_what_it_says(self, foretold: Outcome, done: Outcome) -> None:
        assert done == foretold
        assert self.store.flush(5.0)
        last = {(effect.key, effect.tier): effect.kind for effect in done.effects}
        for (block, tier), kind in last.items():
            view = self.store.admin.block(block)
            is_there = view is not None and tier in view.tiers
            assert is_there == (kind in {Kind.ARRIVES, Kind.DEMOTED})

    @rule(tier=tier_names, tenant=tenants, node=nodes)
    def drain(self, tier: str, tenant: int, node: int) -> None:
        self.store.admin.drain(tier)
        self.put(tenant, [node])
        into = next(name for name in TIERS if name != tier)
        foretold = self.store.admin.drain(tier, into, dry_run=True)
        self.holds_what_it_says(foretold, self.store.admin.drain(tier, into))
        self.store.admin.undrain(tier)

    @invariant()
    def the_books_are_in_order(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.store.flush(5.0)
        self.store.check()
        told = self.store.admin.namespaces()
        for tier in self.store.statistics().tiers[1:]:
            assert sum(view.nbytes.get(tier.name, 0) for view in told) == tier.used_bytes <= tier.budget_bytes
            assert sum(view.num_blocks.get(tier.name, 0) for view in told) == tier.num_blocks
        assert self.rig.medium.stats().occupied_bytes == self.store.statistics().tiers[2].used_bytes

    def teardown(self) -> None:
        for hit in self.hits:
            hit.release()
        self.store.close(5.0)
        self.store.check()
        assert self.store.num_holds == 0


@pytest.mark.parametrize(("name", "factory"), policies)
def test_a_dry_run_says_what_then_happens(name: str, factory: Callable[[], EvictionPolicy]) -> None:
    machine = type(f"Operated_{name}", (Operated,), {"make_policy": staticmethod(factory)})
    limits = settings(
        max_examples=25, stateful_step_count=40, deadline=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=limits)
