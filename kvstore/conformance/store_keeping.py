"""The part of a store's suite that is about how long blocks stay."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from kvstore.absences import Cause
from kvstore.conformance.prompts import BLOCK_BYTES, NAMESPACE, Prompt, StorePlace
from kvstore.errors import ConfigError, PinBudgetError, RequestError
from kvstore.interface import BlockStore
from kvstore.statistics import State


class KeepingConformance:
    """Ends, pins, quarantine and removal, as tests. Override the fixture ``place``."""

    prompt_blocks: ClassVar[int] = 3

    @pytest.fixture
    def place(self) -> Iterator[StorePlace]:
        """Say where stores are opened; in the end nothing may be held."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, place: StorePlace) -> BlockStore:
        """Return one open store."""
        return place.open()

    @pytest.fixture
    def prompt(self, store: BlockStore) -> Prompt:
        """Return a prompt of which nothing is stored."""
        return Prompt(store, self.prompt_blocks)

    def test_a_block_ends_with_its_ttl_in_every_tier_and_a_hit_puts_that_off(
        self, place: StorePlace, store: BlockStore, prompt: Prompt
    ) -> None:
        memory = store.tier_names[1]
        prompt.put(ttl_s=10.0)
        assert store.flush(5.0)
        store.lookup(prompt.keys[:1], ttl_s=100.0).release()
        store.lookup(prompt.keys[:1], ttl_s=1.0).release()
        place.pass_s(11.0)
        assert store.peek(prompt.keys) == (memory, None, None)
        assert not prompt.has(1)
        assert store.why_absent(prompt.keys[1]).cause is Cause.EXPIRED
        place.pass_s(90.0)
        assert store.peek(prompt.keys) == (None, None, None)

    def test_what_became_of_a_block_is_told(self, store: BlockStore, prompt: Prompt) -> None:
        assert store.why_absent(prompt.keys[0]).cause is Cause.NEVER_STORED
        prompt.put()
        assert store.flush(5.0)
        assert store.why_absent(prompt.keys[0]).cause is Cause.PRESENT
        store.evict(prompt.keys[2:])
        assert store.why_absent(prompt.keys[2]).cause is Cause.CLEARED
        assert [namespace.digest for namespace in store.known_namespaces()] == [
            store.own_namespace(NAMESPACE).digest
        ]

    def test_one_tier_can_be_cleared_and_what_is_no_tier_is_refused(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        _, memory, medium = store.tier_names
        prompt.put()
        assert store.flush(5.0)
        assert store.clear(memory) == 3
        assert prompt.tiers() == [medium] * 3
        with pytest.raises(ConfigError, match="tape"):
            store.clear("tape")
        assert store.clear() == 3

    def test_a_wrong_block_is_kept_out_with_what_follows_it_until_all_is_cleared(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        prompt.put()
        assert store.flush(5.0)
        store.quarantine(prompt.keys[1])
        assert prompt.tiers() == [store.tier_names[1], None, None]
        assert store.ended(prompt.keys) == prompt.keys[1:]
        assert store.health().state is State.DEGRADED
        assert prompt.put() == 0
        store.clear()
        assert store.ended(prompt.keys) == []
        assert prompt.put() == 3

    def test_pins_keep_a_prefix_and_unpinning_lets_it_go(
        self, place: StorePlace, store: BlockStore, prompt: Prompt
    ) -> None:
        memory, medium = store.tier_names[1:]
        prompt.put(ttl_s=10.0)
        assert store.flush(5.0)
        unknown = Prompt(store, 1, first=9000).keys[0]
        pinned = store.pin([*prompt.keys[:2], unknown], for_s=60.0)
        assert (pinned.num_blocks, pinned.absent) == ({memory: 2, medium: 2}, (unknown,))
        assert sorted((one.tier, one.num_blocks) for one in store.pins()) == sorted(
            [(memory, 2), (medium, 2)]
        )
        place.pass_s(20.0)
        assert store.peek(prompt.keys) == (memory, memory, None), "its end has been put off"
        assert store.unpin(prompt.keys[:2]) == 4
        assert store.pins() == []

    def test_pins_are_bounded_and_odd_ones_are_refused(self, store: BlockStore, prompt: Prompt) -> None:
        prompt.put()
        assert store.flush(5.0)
        many = Prompt(store, 6, first=5000)
        many.put()
        assert store.flush(5.0)
        with pytest.raises(PinBudgetError) as beyond:
            store.pin(many.keys, for_s=60.0)
        assert beyond.value.wanted_bytes > beyond.value.left_bytes > 0
        assert store.pins() == []
        for odd in ({}, {"for_s": -1.0}, {"for_s": 1.0, "tiers": ["tape"]}):
            with pytest.raises(ConfigError):
                store.pin(prompt.keys, **odd)
        with pytest.raises(ConfigError):
            store.pin([], for_s=1.0)

    def test_blocks_under_a_lease_stay(self, store: BlockStore, prompt: Prompt) -> None:
        prompt.put()
        assert store.flush(5.0)
        hit = store.lookup(prompt.keys[1:])
        assert store.clear() == 1
        assert store.evict(prompt.keys) == 0
        hit.release()
        assert store.evict(prompt.keys) == 2

    @pytest.mark.parametrize("ttl_s", [0.0, -1.0, float("inf"), float("nan")])
    def test_a_ttl_that_cannot_be_is_refused(self, store: BlockStore, prompt: Prompt, ttl_s: float) -> None:
        with pytest.raises(RequestError):
            store.lookup(prompt.keys, ttl_s=ttl_s)
        with pytest.raises(RequestError):
            store.reserve(NAMESPACE, prompt.keys[0], b"", BLOCK_BYTES, ttl_s=ttl_s)

    def test_the_engines_pool_hears_of_ends_even_of_what_no_tier_has_any_more(
        self, place: StorePlace, store: BlockStore, prompt: Prompt
    ) -> None:
        prompt.put(ttl_s=10.0)
        assert store.flush(5.0)
        for key, parent in zip(prompt.keys, [b"", *prompt.keys], strict=False):
            store.device_added(key, parent, NAMESPACE)
        is_told = threading.Event()
        store.watch_device(is_told.set)
        _until(lambda: store.statistics().tiers[0].num_blocks == 3)
        assert store.evict(prompt.keys[2:]) == 1
        assert store.ended(prompt.keys) == store.over_on_device() == []
        place.pass_s(11.0)
        _until(lambda: sorted(store.over_on_device()) == sorted(prompt.keys))
        assert is_told.wait(5.0)
        assert store.ended(prompt.keys) == prompt.keys
        for key in prompt.keys:
            store.device_removed(key)
        store.device_added(prompt.keys[0], b"", NAMESPACE)
        assert store.ended(prompt.keys) == [], "computed again, it begins anew"
        _until(lambda: store.statistics().tiers[0].num_blocks == 1)
        assert store.over_on_device() == []

    def test_what_one_finds_wrong_all_pools_let_go_of(self, place: StorePlace, prompt: Prompt) -> None:
        finder, other = prompt.store, place.open()
        prompt.put()
        other.own_namespace(NAMESPACE)
        for key, parent in zip(prompt.keys, [b"", *prompt.keys], strict=False):
            other.device_added(key, parent, NAMESPACE)
        _until(lambda: finder.statistics().tiers[0].num_blocks == 3)
        finder.quarantine(prompt.keys[1])
        _until(lambda: other.ended(prompt.keys) == prompt.keys[1:])


def _until(holds: Callable[[], bool]) -> None:
    """Wait until what is told now and then has been told."""
    ends_s = time.monotonic() + 10.0
    while not holds():
        assert time.monotonic() < ends_s, "waited in vain"
        time.sleep(0.01)
