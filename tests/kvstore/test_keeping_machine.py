"""Tenants, quotas that change, pins, leases and restarts in whatever order, under every eviction policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kvstore.errors import BackendError, PinBudgetError
from kvstore.leases import Hit
from kvstore.making_room import Room
from kvstore.namespace import salt_digest
from kvstore.retention import Retention, TenantRule
from kvstore.seams import EvictionPolicy
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import WriteMode
from tests.kvstore.conftest import BLOCK_BYTES, Rig
from tests.kvstore.prompt_trees import TIERS, key, namespace, nodes, policies, prefix

NUM_TENANTS = 3

tenants = st.integers(0, NUM_TENANTS - 1)
some_tiers = st.sampled_from([None, ["host"], ["disk"]])
some_quotas = st.dictionaries(st.sampled_from(list(TIERS)), st.integers(0, 8))


class Keeping(RuleBasedStateMachine):
    """A store of two tiers beside a model of what must not go from it."""

    make_policy: Callable[[], EvictionPolicy]

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.retention = Retention()
        self.hits: list[Hit] = []
        self.pins: dict[tuple[str, bytes], float] = {}
        self.fails = False
        self.rig.medium.fail = self.flaky

    def flaky(self, operation: str, _key: bytes) -> None:
        if self.fails and operation == "delete":
            raise BackendError("disk", operation, "flaky")

    @initialize(mode=st.sampled_from(WriteMode), prompts=st.lists(nodes, max_size=3))
    def open(self, mode: WriteMode, prompts: list[int]) -> None:
        self.mode = mode
        self.retention = Retention(TenantRule(pin_bytes=1 << 20))
        self.store = self.opened()
        for tenant, node in enumerate(prompts):
            self.put_prompt(tenant, node)

    def opened(self) -> TieredStore:
        config = StoreConfig(retention=self.retention)
        store = self.rig.open(
            host_blocks=TIERS["host"], disk_blocks=TIERS["disk"], write_mode=self.mode, config=config,
            policy=type(self).make_policy,
        )  # fmt: skip
        for bit in (1, 2):
            self.watch(store, bit)
        for tenant in range(NUM_TENANTS):
            store.register_namespace(namespace(tenant))
        return store

    def watch(self, store: TieredStore, bit: int) -> None:
        """Let no victim of a tier be pinned, leased, or go before a block that follows it."""
        ledger = store._index._ledger(bit)
        reserve = ledger.reserve

        def watched(new: bytes, *args: object) -> Room | None:
            before = set(ledger.held)
            room = reserve(new, *args)  # type: ignore[arg-type]  # handed on as they came
            for victim in room.victims if room else ():
                before.discard(victim)
                tenant, node = victim[1], int.from_bytes(victim[2:], "big")
                assert not before & {key(tenant, 2 * node), key(tenant, 2 * node + 1)}
                assert victim not in ledger.pins
                assert victim not in self.leased()
            return room

        ledger.reserve = watched  # type: ignore[assignment, method-assign]  # so that no step escapes

    @rule(tenant=tenants, prompts=st.lists(nodes, min_size=1, max_size=3))
    def put(self, tenant: int, prompts: list[int]) -> None:
        for node in prompts:
            self.put_prompt(tenant, node)

    def put_prompt(self, tenant: int, node: int) -> None:
        parent = b""
        for block in prefix(tenant, node):
            payload = memoryview(bytes([tenant + 1]) * BLOCK_BYTES)
            self.store.put(namespace(tenant), block, parent, payload)
            parent = block
        assert self.store.flush(5.0)

    @rule(tenant=tenants, node=nodes)
    def look_up(self, tenant: int, node: int) -> None:
        self.hits.append(self.store.lookup(prefix(tenant, node), lease_s=1e9))

    @rule()
    def release(self) -> None:
        if self.hits:
            self.hits.pop(0).release()
            assert self.store.flush(5.0)

    def release_all(self) -> None:
        hits, self.hits = self.hits, []
        for hit in hits:
            hit.release()

    @rule(tenant=tenants, node=nodes)
    def load(self, tenant: int, node: int) -> None:
        self.store.get_into(key(tenant, node), memoryview(bytearray(BLOCK_BYTES)), timeout_s=5.0)
        assert self.store.flush(5.0)

    @rule(tenant=tenants, node=nodes, tiers=some_tiers, for_s=st.sampled_from([5.0, 20.0, 1e6]))
    def pin(self, tenant: int, node: int, tiers: list[str] | None, for_s: float) -> None:
        there = self.there(prefix(tenant, node), tiers)
        try:
            told = self.store.pin(prefix(tenant, node), for_s=for_s, tiers=tiers)
        except PinBudgetError:
            return
        assert sum(told.num_blocks.values()) == len(there)
        ends_s = self.rig.now_s + for_s
        self.pins |= {place: max(ends_s, self.pins.get(place, 0.0)) for place in there}

    @rule(tenant=tenants, node=nodes, tiers=some_tiers)
    def unpin(self, tenant: int, node: int, tiers: list[str] | None) -> None:
        for name, block in self.there(prefix(tenant, node), tiers)[::-1]:
            children = [(name, key(tenant, 2 * block[-1] + side)) for side in (0, 1)]
            if not any(self.is_pinned(child) for child in children):
                self.pins.pop((name, block), None)
        self.store.unpin(prefix(tenant, node), tiers)

    @rule(tenant=tenants, node=nodes)
    def evict(self, tenant: int, node: int) -> None:
        self.store.evict([key(tenant, node)])
        assert self.store.flush(5.0)
        there = self.there([key(tenant, node)], None)
        self.pins = {place: end for place, end in self.pins.items() if place[1] != key(tenant, node)} | {
            place: self.pins[place] for place in there if place in self.pins
        }

    @rule(
        quotas=st.lists(
            st.dictionaries(st.sampled_from(list(TIERS)), st.integers(0, 8)), max_size=NUM_TENANTS
        ),
        others=st.dictionaries(st.sampled_from(list(TIERS)), st.integers(1, 8), max_size=1),
        narrow=st.none() | st.integers(0, 5),
        pin_blocks=st.integers(1, 20),
    )
    def set_rules(
        self, quotas: list[dict[str, int]], others: dict[str, int], narrow: int | None, pin_blocks: int
    ) -> None:
        unit = BLOCK_BYTES + 192
        named = {
            salt_digest(f"tenant {tenant}"): TenantRule(
                quotas={tier: unit * num for tier, num in of_tier.items()}, pin_bytes=pin_blocks * unit
            )
            for tenant, of_tier in enumerate(quotas)
        }
        rest = TenantRule(
            quotas={tier: unit * num for tier, num in others.items()}, pin_bytes=pin_blocks * unit
        )
        narrower = {} if narrow is None else {namespace(0).digest: {"host": narrow * unit}}
        self.retention = Retention(rest, named, narrower)
        self.store.set_retention(self.retention)

    @rule(seconds=st.sampled_from([1.0, 6.0, 30.0]))
    def tick(self, seconds: float) -> None:
        self.rig.now_s += seconds

    @rule(fails=st.booleans())
    def break_or_mend(self, fails: bool) -> None:
        self.fails = fails

    @rule()
    def restart(self) -> None:
        self.release_all()
        self.store.close(5.0)
        self.store.check()
        self.pins.clear()
        self.fails = False
        self.store = self.opened()

    @invariant()
    def the_books_are_in_order(self) -> None:
        if not hasattr(self, "store"):
            return
        self.store.check()
        for place in self.pins:
            if self.is_pinned(place):
                assert self.holds(*place)
        _, host, disk = self.store.statistics().tiers
        assert host.used_bytes <= host.budget_bytes
        assert disk.used_bytes <= disk.budget_bytes
        assert self.rig.medium.stats().occupied_bytes <= disk.budget_bytes

    def leased(self) -> set[bytes]:
        return {block for hit in self.hits for block, tier in zip(hit.keys, hit.tiers, strict=True) if tier}

    def is_pinned(self, place: tuple[str, bytes]) -> bool:
        return self.pins.get(place, 0.0) > self.rig.now_s

    def holds(self, tier: str, block: bytes) -> bool:
        return block in self.store._index._ledger(1 + list(TIERS).index(tier)).held

    def there(self, blocks: list[bytes], tiers: list[str] | None) -> list[tuple[str, bytes]]:
        return [(tier, block) for block in blocks for tier in tiers or TIERS if self.holds(tier, block)]

    def teardown(self) -> None:
        self.fails = False
        self.release_all()
        self.store.close(5.0)
        self.store.check()
        assert self.store.num_holds == 0


@pytest.mark.parametrize(("name", "factory"), policies)
def test_a_life_with_tenants_quotas_and_pins(name: str, factory: Callable[[], EvictionPolicy]) -> None:
    machine = type(f"Keeping_{name}", (Keeping,), {"make_policy": staticmethod(factory)})
    limits = settings(
        max_examples=20, stateful_step_count=50, deadline=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=limits)
