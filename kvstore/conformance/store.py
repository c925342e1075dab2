"""The suite every ``BlockStore`` passes, wherever its blocks are.

Tests of a kind of store subclass it and say how to open one::

    class TestMyStore(BlockStoreConformance):
        @pytest.fixture
        def place(self):
            yield StorePlace(open=..., pass_s=...)

It needs pytest, which ``kvstore`` itself does not.
"""

from __future__ import annotations

import threading
import time

import pytest

from kvstore.conformance.prompts import (
    BLOCK_BYTES,
    NAMESPACE,
    Prompt,
    StorePlace,
    conformance_config,
    payload,
)
from kvstore.conformance.store_keeping import KeepingConformance
from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.interface import BlockStore
from kvstore.statistics import State

__all__ = ["BLOCK_BYTES", "NAMESPACE", "BlockStoreConformance", "Prompt", "StorePlace", "conformance_config"]


class BlockStoreConformance(KeepingConformance):
    """What ``kvstore.interface.BlockStore`` promises, as tests. Override the fixture ``place``."""

    def test_what_is_stored_is_read_and_what_is_not_is_a_miss(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        assert not prompt.has(0)
        assert prompt.put() == 3
        assert prompt.has(0)
        assert prompt.has(2)
        assert not store.get_into(prompt.keys[0], memoryview(bytearray(BLOCK_BYTES + 1)))
        assert not store.get_into(bytes(16), memoryview(bytearray(BLOCK_BYTES)))

    def test_who_stores_finds_it_at_once_and_others_when_it_is_flushed(
        self, place: StorePlace, prompt: Prompt
    ) -> None:
        memory = prompt.store.tier_names[1]
        prompt.put()
        assert prompt.tiers() == [memory] * 3
        assert prompt.store.flush(5.0)
        other = Prompt(place.open(), 3)
        assert other.tiers() == [memory] * 3
        assert other.has(1)
        assert other.put() == 0, "it is there"

    def test_with_no_time_or_all_of_it_a_question_is_answered_and_leases_stay(self, prompt: Prompt) -> None:
        prompt.put()
        assert prompt.store.flush(5.0)
        hit = prompt.store.lookup(prompt.keys)
        began_s = time.monotonic()
        for timeout_s in (0.0, 1e6):
            prompt.store.flush(timeout_s)
            prompt.store.known_namespaces(timeout_s)
        assert time.monotonic() - began_s < 2.0
        ticket = prompt.store.load(hit, 0, prompt.store.now_s() + 5.0)
        assert ticket.read_into(memoryview(bytearray(BLOCK_BYTES)), 5.0)
        hit.release()

    def test_a_lookup_says_the_fastest_tier_of_each_block_and_shows_holes(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        device, memory, medium = store.tier_names
        prompt.put()
        assert store.flush(5.0)
        assert store.clear(memory) == 3
        assert prompt.has(2)
        assert store.evict([prompt.keys[1]]) == 1
        assert prompt.tiers() == [medium, None, memory]
        store.device_added(prompt.keys[1], prompt.keys[0], NAMESPACE)
        assert prompt.tiers() == [medium, device, memory]
        assert store.peek(prompt.keys) == (medium, device, memory)
        store.device_removed(prompt.keys[1])
        assert prompt.tiers() == [medium, None, memory]
        assert store.lookup([]).tiers == ()

    def test_a_block_that_the_engines_pool_alone_has_is_none_to_load(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        store.device_added(prompt.keys[0], b"", NAMESPACE)
        assert prompt.load(0) is None
        assert not prompt.has(0)

    def test_a_ticket_tells_of_its_end_and_gives_its_block_once(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        memory, medium = store.tier_names[1:]
        prompt.put()
        store.flush(5.0)
        store.clear(memory)
        hit, has_ended = store.lookup(prompt.keys), threading.Event()
        ticket = store.load(hit, 1, store.now_s() + 5.0, has_ended.set)
        assert ticket.wait(5.0)
        assert ticket.done()
        assert has_ended.wait(5.0)
        block = ticket.take()
        assert block is not None
        assert (block.data, block.tier) == (payload(1), medium)
        assert ticket.take() is None
        hit.release()
        block.release()
        block.release()
        with pytest.raises(ValueError, match="released"):
            _ = block.data

    def test_loads_that_are_given_up_hold_nothing(self, store: BlockStore, prompt: Prompt) -> None:
        memory = store.tier_names[1]
        prompt.put()
        store.flush(5.0)
        for is_in_memory in (True, False):
            hit = store.lookup(prompt.keys)
            for number in range(3):
                store.load(hit, number, store.now_s() + 5.0).abandon()
            hit.release()
            if is_in_memory:
                store.clear(memory)

    def test_a_loaded_block_stays_valid_when_it_is_removed(self, store: BlockStore, prompt: Prompt) -> None:
        prompt.put()
        block = prompt.load(0)
        assert block is not None
        store.clear()
        store.evict(prompt.keys)
        assert block.data == payload(0)
        block.release()

    def test_case_12_a_lease_that_is_slept_past_loads_nothing(
        self, place: StorePlace, store: BlockStore, prompt: Prompt
    ) -> None:
        prompt.put()
        assert store.flush(5.0)
        for clears_memory in (False, True):
            if clears_memory:
                store.clear(store.tier_names[1])
            hit = store.lookup(prompt.keys, lease_s=0.5)
            assert hit.deadline_s - store.now_s() <= 0.5
            place.pass_s(0.6)
            for number in range(3):
                with pytest.raises(LeaseExpiredError):
                    store.load(hit, number, store.now_s() + 1.0)
            assert not hit.is_leased
        store.lookup([])
        assert store.evict(prompt.keys) == 3, "it holds nothing"

    def test_a_released_hit_loads_nothing(self, store: BlockStore, prompt: Prompt) -> None:
        prompt.put()
        hit = store.lookup(prompt.keys)
        hit.release()
        hit.release()
        with pytest.raises(LeaseExpiredError):
            store.load(hit, 0, store.now_s() + 1.0)

    def test_a_reserved_block_is_not_visible_before_it_is_committed(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        (key, *_), memory = prompt.keys, store.tier_names[1]
        reserved = store.reserve(NAMESPACE, key, b"", BLOCK_BYTES)
        assert reserved is not None
        assert prompt.tiers()[0] is None
        assert store.reserve(NAMESPACE, key, b"", BLOCK_BYTES) is None, "it is on its way"
        reserved.view[:] = payload(0)
        reserved.commit()
        assert prompt.tiers()[0] == memory
        assert prompt.has(0)

    def test_an_aborted_reservation_leaves_nothing_behind(self, store: BlockStore, prompt: Prompt) -> None:
        reserved = store.reserve(NAMESPACE, prompt.keys[0], b"", BLOCK_BYTES)
        assert reserved is not None
        reserved.abort()
        assert store.flush(5.0)
        assert store.statistics().staging_bytes == 0
        assert prompt.put() == 3

    def test_a_partial_block_is_not_taken(self, store: BlockStore, prompt: Prompt) -> None:
        assert store.reserve(NAMESPACE, prompt.keys[0], b"", BLOCK_BYTES, num_tokens=15) is None

    def test_statistics_and_health_name_the_tiers_from_the_fastest(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        prompt.put()
        assert store.flush(5.0)
        tiers = store.statistics().tiers
        assert tuple(tier.name for tier in tiers) == store.tier_names
        assert [tier.num_blocks for tier in tiers] == [0, 3, 3]
        assert store.health().state is State.OK

    def test_without_media_that_others_write_to_there_is_nothing_to_ask(
        self, store: BlockStore, prompt: Prompt
    ) -> None:
        assert store.inquire(prompt.keys, store.now_s() + 1.0) is None

    def test_a_closed_store_takes_nothing_and_says_so(self, store: BlockStore, prompt: Prompt) -> None:
        prompt.put()
        hit = store.lookup(prompt.keys)
        store.close()
        assert store.reserve(NAMESPACE, prompt.keys[0], b"", BLOCK_BYTES) is None
        with pytest.raises(StoreClosedError):
            prompt.has(0)
        with pytest.raises(StoreClosedError):
            store.load(hit, 0, store.now_s() + 1.0)
        with pytest.raises(StoreClosedError):
            store.inquire(prompt.keys, store.now_s() + 1.0)
        assert store.health().state is State.UNHEALTHY
        store.close()
