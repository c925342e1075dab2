"""Which rule holds for which block, and what it makes of blocks that are there."""

from __future__ import annotations

from collections.abc import Callable

from kvstore.defaults import Defaults, Use
from kvstore.frame import Header
from kvstore.lives import Lives
from kvstore.record import FOREVER_MS, Record
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.rules import Limits, Rules
from kvstore.store import StoreConfig
from kvstore.tenants import Tenants
from tests.kvstore.conftest import Rig, wait_for_scans

A, B, C = b"a", b"b", b"c"
SHORT = Retention(
    TenantRule(Lifetime(ttl_s=3.0, hard_ttl_s=30.0)),
    prefixes={A: Lifetime(ttl_s=1.0, hard_ttl_s=20.0), B: Lifetime(ttl_s=2.0, hard_ttl_s=40.0)},
)


def test_the_most_particular_soft_limit_and_the_earliest_hard_one_count() -> None:
    rules = Rules(SHORT)
    assert rules.of_prompt([C], None) == Limits()
    assert rules.of_prompt([C], "anybody") == Limits(3000, 30_000)
    assert rules.of_prompt([A], "anybody") == Limits(1000, 20_000)
    assert rules.of_prompt([A, B, C], "anybody") == Limits(2000, 20_000), "the longest prefix is the most so"


def test_what_was_learnt_of_a_prompt_holds_for_those_that_go_on_from_it() -> None:
    rules = Rules(SHORT)
    rules.of_prompt([A, C], None)
    assert rules.of_prompt([C], None) == Limits(1000, 20_000), "named by its end alone"
    assert rules.of_block(b"d", C, None) == Limits(1000, 20_000)
    assert rules.of_block(b"e", b"unknown", None) == Limits()


def test_under_a_new_rule_a_use_that_named_no_end_counts_as_that_rule_says(rig: Rig) -> None:
    store = rig.open(config=StoreConfig(default_ttl_s=3600.0))
    rig.put(store, 1)
    rig.put(store, 2, ttl_s=90.0)
    store.set_retention(Retention(TenantRule(Lifetime(ttl_s=60.0))))
    rig.now_s += 59.9
    assert store.peek([rig.key(1), rig.key(2)]) == ("host", "host")
    rig.now_s += 0.1
    assert store.peek([rig.key(1), rig.key(2)]) == (None, "host"), "not by the store's default any more"


def test_a_new_hard_limit_of_a_prefix_holds_for_the_blocks_before_its_last_one_too(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2, 3)
    rig.put(store, 4)
    store.set_retention(Retention(prefixes={rig.key(2): Lifetime(hard_ttl_s=60.0)}))
    rig.now_s += 60.0
    assert store.peek([rig.key(number) for number in (1, 2, 3, 4)]) == (None, None, None, "host")


def test_rules_hold_for_what_is_found_on_a_medium_in_any_order(rig: Rig) -> None:
    store = rig.open(host_blocks=0)
    rig.put(store, 1, 2, 3)
    rig.put(store, 4)
    store.close()
    headers = [Header.unpack(rig.medium.frames[rig.key(number)][0]) for number in (4, 3, 2, 1)]

    def find(found: Callable[[Header], None]) -> None:
        for header in headers:
            found(header)

    rig.medium.frames.clear()  # so that only the scan tells of them
    rig.medium.found = find
    rules = Retention(prefixes={rig.key(2): Lifetime(hard_ttl_s=60.0)})
    again = rig.open(host_blocks=0, config=StoreConfig(retention=rules))
    wait_for_scans()
    rig.now_s += 60.0
    assert again.peek([rig.key(number) for number in (1, 2, 3, 4)]) == (None, None, None, "disk")


def test_a_use_makes_up_for_an_earlier_one_only_while_that_keeps_alive() -> None:
    earlier = Use(0, 10, 10)
    assert Use(9, 30, 30).outlasts(earlier)
    assert not Use(10, 30, 30).outlasts(earlier), "what it kept has ended by now"
    assert not Use(5, 9, 9).outlasts(earlier)
    assert not Use(5, 0, 30).outlasts(earlier), "tiers' defaults and a named end do not compare"


def test_what_comes_at_the_hard_end_of_a_block_that_nobody_looked_at_is_another_block() -> None:
    old = Record(A, b"", created_ms=1, named_ms=FOREVER_MS, hard_ms=10, tiers=2)
    lives = Lives({A: old}, Defaults([FOREVER_MS] * 2), Tenants())
    lives.complete(old, Record(A, b"", created_ms=10, named_ms=50))
    assert (old.created_ms, old.named_ms, old.hard_ms) == (10, 50, FOREVER_MS)
