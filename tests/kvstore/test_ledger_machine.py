"""The books of a tier, step by step: blocks of any size on their way in and out at the same time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstore.ledger import Ledger
from kvstore.making_room import Room
from kvstore.pins import Pin, TierPins
from kvstore.quotas import Quotas
from kvstore.retention import Retention, TenantRule
from kvstore.tenants import Tenants
from policies.lru import LeafFirstLRU

BUDGET_BYTES = 24
NUM_TENANTS = 3

tenants = st.integers(0, NUM_TENANTS - 1)
quotas = st.lists(st.none() | st.integers(0, 16), min_size=NUM_TENANTS, max_size=NUM_TENANTS)


def namespace(tenant: int) -> bytes:
    return bytes([tenant]) * 16


class Life(RuleBasedStateMachine):
    """Every step of a block's way by itself, so that others come in between; deletions fail now and then."""

    def __init__(self) -> None:
        super().__init__()
        known = Tenants()
        for tenant in range(NUM_TENANTS):
            known.learn(namespace(tenant), str(tenant), tuple)
        self.quotas = Quotas("host", LeafFirstLRU, known)
        self.ledger = Ledger(BUDGET_BYTES, LeafFirstLRU(), self.quotas, TierPins())
        self.facts: dict[bytes, tuple[bytes, bytes]] = {}
        self.rooms: list[Room] = []
        self.now = 0

    @rule(tenant=tenants, number=st.integers(1, 9), size=st.integers(1, 6))
    def reserve(self, tenant: int, number: int, size: int) -> None:
        key = bytes([tenant, number])
        room = self.ledger.reserve(key, size, lambda _: False, namespace(tenant))
        if room is not None:
            parent = bytes([tenant, number // 2]) if number > 1 else b""
            self.facts[key] = namespace(tenant), parent
            self.rooms.append(room)

    @precondition(lambda self: self.ledger.leaving)
    @rule(data=st.data(), fails=st.booleans())
    def delete(self, data: st.DataObject, fails: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.ledger.leaving)))
        (self.ledger.removal_failed if fails else self.ledger.confirm_removal)(key)
        self.rooms = [room for room in self.rooms if not self.ledger.is_void(room)]

    @precondition(lambda self: self.rooms)
    @rule(data=st.data(), settles=st.booleans())
    def end(self, data: st.DataObject, settles: bool) -> None:
        room = data.draw(st.sampled_from(self.rooms))
        if any(self.ledger.heirs.get(victim) is room for victim in room.victims):
            return  # its writer is not done with them
        self.rooms.remove(room)
        self.now += 1
        if settles:
            self.ledger.settle(room, self.facts[room.key][1], self.now)
        else:
            self.ledger.cancel(room)

    @precondition(lambda self: self.ledger.held)
    @rule(data=st.data(), forgets=st.booleans())
    def remove(self, data: st.DataObject, forgets: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.ledger.held)))
        (self.ledger.forget if forgets else self.ledger.begin_removal)(key)

    @rule(data=st.data(), tenant=tenants, size=st.integers(1, 6))
    def recover(self, data: st.DataObject, tenant: int, size: int) -> None:
        key = bytes([tenant, data.draw(st.integers(1, 9))])
        if not self.ledger.knows(key) and self.ledger.has_room(size, namespace(tenant)):
            self.facts[key] = namespace(tenant), b""
            self.ledger.add(key, b"", size, self.now, namespace=namespace(tenant))

    @precondition(lambda self: self.ledger.held)
    @rule(data=st.data(), until_ms=st.integers(1, 50))
    def pin(self, data: st.DataObject, until_ms: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.ledger.held)))
        nbytes = self.ledger.held[key]
        if key in self.ledger.pins or 2 * (self.ledger.pins.pinned_bytes + nbytes) <= BUDGET_BYTES:
            self.ledger.pin(key, Pin(self.facts[key][1], self.now + until_ms, str(key[0]), nbytes))

    @precondition(lambda self: self.ledger.pins.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        self.ledger.unpin(data.draw(st.sampled_from(sorted(self.ledger.pins.pins))), self.now)

    @rule(by=st.integers(1, 20), limit=st.integers(1, 3))
    def pass_time(self, by: int, limit: int) -> None:
        self.now += by
        self.ledger.end_pins(self.now, self.now, limit)

    @rule(allowed=quotas)
    def set_quotas(self, allowed: list[int | None]) -> None:
        rules = {
            str(tenant): TenantRule(quotas={} if quota is None else {"host": quota})
            for tenant, quota in enumerate(allowed)
        }
        if self.quotas.set_rules(Retention(tenants=rules)):
            self.ledger.regroup(self.facts.__getitem__, self.now)

    @invariant()
    def the_books_are_in_order(self) -> None:
        self.ledger.check()
        held = {key for key in self.ledger.held if self.quotas.of(self.facts[key][0])}
        assert held <= self.quotas.members.keys(), "every block counts in its groups"

    def teardown(self) -> None:
        for room in list(self.rooms):
            for victim in room.victims:
                self.ledger.confirm_removal(victim)
            self.ledger.cancel(room)
        for key in list(self.ledger.held):
            self.ledger.begin_removal(key)
        for key in list(self.ledger.leaving):
            self.ledger.confirm_removal(key)
        self.ledger.check()
        assert self.ledger.used_bytes == 0
        assert not self.quotas.members
        assert not list(self.quotas), "a group without blocks is gone"
        assert not self.ledger.pins.charges, "every charge is given back"


Life.TestCase.settings = settings(
    max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLifeOfLedger = Life.TestCase


@pytest.mark.parametrize("quota_bytes", [None, 8])
def test_a_victims_bytes_pass_to_the_block_that_replaces_it(quota_bytes: int | None) -> None:
    known = Tenants()
    known.learn(namespace(0), "0", tuple)
    books = Quotas("host", LeafFirstLRU, known)
    if quota_bytes is not None:
        books.set_rules(Retention(tenants={"0": TenantRule(quotas={"host": quota_bytes})}))
    ledger = Ledger(8, LeafFirstLRU(), books)
    ledger.add(b"large", b"", 8, 0.0, namespace=namespace(0))
    room = ledger.reserve(b"small", 2, lambda _: False, namespace(0))
    assert room is not None
    assert ledger.used_bytes == 8, "until it is deleted, the large one is there"
    assert ledger.reserve(b"other", 1, lambda _: False, namespace(0)) is None
    ledger.confirm_removal(b"large")
    assert ledger.used_bytes == 2
    assert [group.used_bytes for group in books] == ([] if quota_bytes is None else [2])
