"""A store over a real Valkey server: whatever becomes of the server, the worst is a counted miss."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from backends.host import HostBackend
from backends.redis_layout import PART_BYTES, header_name, part_name
from kvstore.absences import Cause
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.loading import Ticket
from kvstore.namespace import Namespace
from kvstore.retention import Lifetime, Retention, TenantRule
from kvstore.statistics import State
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.valkey import Valkey

BLOCK_BYTES = PART_BYTES + 5
NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)


@dataclass
class Rig:
    """A server, and stores whose only lower tier it is. ``later_s`` moves their monotonic clock."""

    server: Valkey
    later_s: float = 0.0
    stores: list[TieredStore] = field(default_factory=list)

    def open(self, *, host_blocks: int = 0, num_readers: int = 2) -> TieredStore:
        arena = Arena((host_blocks + 8) * 2 * PART_BYTES)
        specs = []
        if host_blocks:
            config = TierConfig("host", host_blocks * 2 * PART_BYTES)
            specs.append(TierSpec(config, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit))
        config = TierConfig("redis", 256 << 20, num_readers=num_readers)
        backend = self.server.backend(timeout_s=0.3)
        specs.append(TierSpec(config, backend, LeafFirstLRU(), whole_blocks_that_fit))
        store = TieredStore(specs, arena, clock=Clock(lambda: time.monotonic() + self.later_s))
        self.stores.append(store)
        return store

    def key(self, number: int) -> bytes:
        return number.to_bytes(16, "big")

    def payload(self, number: int) -> memoryview:
        return memoryview(bytes([number % 251]) * BLOCK_BYTES)

    def put(self, store: TieredStore, *numbers: int, ttl_s: float | None = None) -> None:
        for number in numbers:
            assert store.put(NAMESPACE, self.key(number), b"", self.payload(number), ttl_s=ttl_s)
        assert store.flush(10.0)

    def get(self, store: TieredStore, number: int) -> bool:
        """Say whether the store has the block of ``number``; its bytes must be the right ones."""
        out = bytearray(BLOCK_BYTES)
        if not store.get_into(self.key(number), memoryview(out), timeout_s=5.0):
            return False
        assert out == self.payload(number)
        return True

    def ask(self, store: TieredStore, *numbers: int) -> None:
        """Let the store learn what the server holds."""
        inquiry = store.inquire([self.key(number) for number in numbers], time.monotonic() + 60.0)
        assert inquiry is None or inquiry.wait(10.0)
        assert store.flush(10.0)

    def load(self, store: TieredStore, *numbers: int) -> list[Ticket]:
        """Begin to load blocks, all at once."""
        hit = store.lookup([self.key(number) for number in numbers])
        tickets = [store.load(hit, index, hit.deadline_s) for index in range(len(numbers))]
        hit.release()
        return tickets

    def counts(self, store: TieredStore) -> dict[str, int]:
        return next(entry.counts for entry in store.statistics().tiers if entry.name == "redis")

    def wait_out_the_breaker(self) -> None:
        self.later_s += 5.0


@pytest.fixture
def rig(own_valkey: Valkey) -> Iterator[Rig]:
    """Return a rig; at the end every store must be at rest, its books in order."""
    rig = Rig(own_valkey)
    yield rig
    own_valkey.go_on()
    for store in rig.stores:
        store.close(5.0)
        store.check()
    wait_until(lambda: not any(store.num_holds for store in rig.stores))


def wait_until(condition: Callable[[], bool]) -> None:
    ends_at_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < ends_at_s
        time.sleep(0.002)


def num_arrived(tickets: list[Ticket]) -> int:
    """Wait for all tickets and return how many brought a block, which must be right."""
    count = 0
    for ticket in tickets:
        assert ticket.wait(10.0)
        block = ticket.take()
        if block is not None:
            assert bytes(block.data) == bytes([block.data[0]]) * BLOCK_BYTES
            block.release()
            count += 1
    return count


# A store that ends half way


def test_case_5_a_write_that_breaks_off_half_way_is_not_visible(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    held = rig.server.admin().dbsize()
    rig.server.stop_answering()
    for number in (2, 3, 4):
        assert store.put(NAMESPACE, rig.key(number), b"", rig.payload(number))
    assert store.flush(10.0)
    rig.server.go_on()  # it has parts of the transaction, and learns that no more is to come
    wait_until(lambda: rig.server.admin().info("clients")["connected_clients"] <= 2)
    assert rig.server.admin().dbsize() == held
    rig.wait_out_the_breaker()
    rig.ask(store, 1, 2, 3, 4)
    assert [rig.get(store, number) for number in (1, 2, 3, 4)] == [True, False, False, False]
    assert rig.counts(store)["write_faults"] == 3


def test_case_5_a_server_that_fills_up_takes_whole_blocks_or_none(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    rig.server.admin().config_set("maxmemory", "12mb")
    for number in range(2, 20):
        store.put(NAMESPACE, rig.key(number), b"", rig.payload(number))
        assert store.flush(10.0)
    num_stored = rig.counts(store)["stores"]
    assert 1 < num_stored < 19
    assert rig.server.admin().keys("*:0") != []
    assert rig.server.admin().dbsize() == 3 * num_stored + 1, "a header and two parts each, and the manifests"
    assert sum(rig.get(store, number) for number in range(1, 20)) == num_stored
    assert rig.counts(store)["write_faults"] == 3, "then writes pause"
    assert "at its maxmemory" in store.health().tiers["redis"].reason


def test_case_5_a_server_killed_in_mid_write_and_restarted_serves_what_is_whole(rig: Rig) -> None:
    store = rig.open()
    for number in range(1, 9):
        assert store.put(NAMESPACE, rig.key(number), b"", rig.payload(number))
    wait_until(lambda: rig.counts(store)["stores"] > 0)
    rig.server.kill()
    assert store.flush(10.0)
    rig.server.start()
    rig.wait_out_the_breaker()
    assert not any(rig.get(store, number) for number in range(1, 9)), "a cache without a disk is empty now"
    rig.put(store, 11)
    assert rig.get(store, 11)
    assert store.health().state is State.OK


# Bytes that are not the block


def test_case_6_a_byte_flipped_in_any_part_is_a_counted_miss(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2, 3)
    for number, name in ((1, part_name(rig.key(1), 0)), (2, part_name(rig.key(2), 1))):
        rig.server.admin().setrange(name, 3, b"\xff")
        assert not rig.get(store, number)
    header = rig.server.admin().get(header_name(rig.key(3)))
    assert isinstance(header, bytes)
    rig.server.admin().set(header_name(rig.key(3)), header[:60] + b"\xff" + header[61:])
    assert not rig.get(store, 3)
    assert rig.counts(store)["corrupt"] == 3
    assert store.flush(10.0)
    assert rig.server.admin().keys("*{*") == [], "what is bad is dropped"


@pytest.mark.parametrize("length", [0, 1, 191])
def test_case_6_a_header_or_part_cut_short_is_a_counted_miss(rig: Rig, length: int) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    for number, name in ((1, header_name(rig.key(1))), (2, part_name(rig.key(2), 0))):
        whole = rig.server.admin().get(name)
        assert isinstance(whole, bytes)
        rig.server.admin().set(name, whole[:length])
        assert not rig.get(store, number)
    assert rig.counts(store)["missing"] + rig.counts(store)["corrupt"] == 2


@pytest.mark.parametrize("with_header", [True, False])
def test_case_6_values_swapped_with_another_keys_are_counted_misses(rig: Rig, with_header: bool) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    admin = rig.server.admin()
    names = [[part_name(rig.key(number), part) for part in (0, 1)] for number in (1, 2)]
    if with_header:
        names = [[header_name(rig.key(number)), *parts] for number, parts in zip((1, 2), names, strict=True)]
    values = {name: admin.get(name) or b"" for name in [*names[0], *names[1]]}
    for one, other in zip(*names, strict=True):
        admin.set(one, values[other])
        admin.set(other, values[one])
    assert not rig.get(store, 1)
    assert not rig.get(store, 2)
    assert rig.counts(store)["corrupt"] == 2


@pytest.mark.parametrize("part", [0, 1])
def test_case_8_a_block_without_one_of_its_parts_is_a_counted_miss_and_removed(rig: Rig, part: int) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    rig.server.admin().delete(part_name(rig.key(1), part))
    assert not rig.get(store, 1)
    assert rig.get(store, 2)
    assert rig.counts(store)["missing"] == 1
    assert store.flush(10.0)
    assert not rig.server.admin().exists(header_name(rig.key(1))), "nobody is told that it is there"


def test_case_14_a_block_of_others_that_lacks_a_part_is_tried_once(rig: Rig) -> None:
    """As when the server evicts a part: the header is used again and again, and so stays."""
    theirs, ours = rig.open(), rig.open()
    rig.put(theirs, 1, 2)
    rig.server.admin().delete(part_name(rig.key(1), 1))
    for _ in range(3):
        rig.ask(ours, 1, 2)
        assert not rig.get(ours, 1)
        assert rig.get(ours, 2)
        assert ours.flush(10.0)
    assert rig.counts(ours)["missing"] == 1
    assert rig.server.admin().dbsize() == 4, "a header and two parts, and the manifests"


def test_case_10_a_block_that_the_server_evicts_between_lookup_and_load_is_a_miss(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1, 2)
    hit = store.lookup([rig.key(1), rig.key(2)])
    rig.server.admin().delete(header_name(rig.key(1)))
    tickets = [store.load(hit, index, hit.deadline_s) for index in (0, 1)]
    assert num_arrived(tickets) == 1
    hit.release()
    assert rig.counts(store)["missing"] == 1


def test_case_10_a_server_that_evicts_by_itself_costs_misses_alone(rig: Rig) -> None:
    admin = rig.server.admin()
    admin.config_set("maxmemory-policy", "allkeys-lru")
    admin.config_set("maxmemory", "12mb")
    store = rig.open()
    for number in range(1, 20):
        rig.put(store, number)
    assert rig.counts(store)["stores"] == 19
    assert admin.info("stats")["evicted_keys"] > 0
    num_there = sum(rig.get(store, number) for number in range(1, 20))
    assert 0 < num_there < 19
    assert rig.counts(store)["corrupt"] == 0


# A server that fails


def test_case_11_a_server_killed_in_mid_load_is_counted_left_alone_and_used_again(rig: Rig) -> None:
    store = rig.open(num_readers=1)
    rig.put(store, *range(1, 9))
    hung = rig.load(store, 1)
    assert num_arrived(hung) == 1
    rig.server.stop_answering()
    tickets = rig.load(store, *range(1, 9))
    rig.server.kill()
    assert num_arrived(tickets) == 0
    assert rig.counts(store)["read_faults"] >= 1
    for number in range(1, 4):
        rig.get(store, number)
    assert store.health().state is State.DEGRADED
    assert "reads paused: redis: get failed: the server cannot be reached" in str(store.health())
    assert store.statistics().staging_bytes == 0

    rig.server.start()
    rig.wait_out_the_breaker()
    assert not rig.get(store, 1), "it is empty"
    rig.put(store, 1, 11)
    assert rig.get(store, 1)
    assert rig.get(store, 11)
    assert store.health().state is State.OK


def test_a_server_that_is_not_there_at_the_start_delays_nothing_and_joins_when_it_comes(rig: Rig) -> None:
    rig.server.kill()
    store = rig.open(host_blocks=8)
    rig.put(store, 1, 2, 3)
    assert all(rig.get(store, number) for number in (1, 2, 3)), "from host memory"
    assert "reads paused: redis: lookup failed" in store.health().tiers["redis"].reason
    rig.server.start()
    rig.wait_out_the_breaker()
    eventually(lambda: "reads paused" not in store.health().tiers["redis"].reason)
    rig.put(store, 4)
    assert rig.counts(store)["stores"] == 1
    rig.ask(store, 9)
    assert store.health().state is State.OK


def test_a_read_only_replica_serves_what_it_has_and_drops_what_is_stored(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        rig.server.admin().replicaof("127.0.0.1", str(nobody.getsockname()[1]))
        for number in (2, 3, 4):
            store.put(NAMESPACE, rig.key(number), b"", rig.payload(number))
        assert store.flush(10.0)
        assert rig.get(store, 1)
        assert "read-only replica" in store.health().tiers["redis"].reason
        assert rig.counts(store)["write_faults"] == 3


def test_case_14_a_server_that_hangs_costs_its_timeout_until_it_is_left_alone(rig: Rig) -> None:
    store = rig.open()
    rig.put(store, 1)
    rig.server.stop_answering()
    for _ in range(3):
        assert not rig.get(store, 1)
    assert not store.lookup([rig.key(1)]).records, "lookups no longer count on it"
    assert "does not answer in time" in store.health().tiers["redis"].reason
    rig.server.go_on()
    rig.wait_out_the_breaker()
    assert rig.get(store, 1)


@pytest.mark.parametrize("hangs", [True, False])
def test_case_18_close_returns_with_transfers_in_flight_and_a_server_that_is_gone(
    rig: Rig, hangs: bool
) -> None:
    store = rig.open()
    rig.put(store, 1, 2, 3)
    if hangs:
        rig.server.stop_answering()
    else:
        rig.server.kill()
    tickets = rig.load(store, 1, 2, 3)
    for number in range(4, 12):
        store.put(NAMESPACE, rig.key(number), b"", rig.payload(number))
    closing = threading.Thread(target=store.close, args=(0.5,))
    closing.start()
    closing.join(10.0)
    assert not closing.is_alive()
    assert num_arrived(tickets) == 0
    assert store.health().state is State.UNHEALTHY


# One server, several processes


def test_two_stores_on_one_server_see_each_others_blocks(rig: Rig) -> None:
    mine, theirs = rig.open(), rig.open()
    rig.put(theirs, 1, 2)
    assert not mine.lookup([rig.key(1), rig.key(2)]).records
    rig.ask(mine, 1, 2, 3)
    assert mine.peek([rig.key(1), rig.key(2), rig.key(3)]) == ("redis", "redis", None)
    assert rig.get(mine, 2)
    assert NAMESPACE in mine.known_namespaces()
    theirs.close()
    again = rig.open()
    rig.ask(again, 1, 2)
    assert rig.get(again, 1)


def test_a_block_that_both_store_at_once_is_one_block(rig: Rig) -> None:
    mine, theirs = rig.open(), rig.open()
    both = [threading.Thread(target=rig.put, args=(store, *range(1, 9))) for store in (mine, theirs)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert rig.server.admin().dbsize() == 8 * 3 + 1
    assert all(rig.get(store, number) for number in range(1, 9) for store in (mine, theirs))
    assert rig.counts(mine)["corrupt"] == rig.counts(theirs)["corrupt"] == 0


def test_exchanges_that_go_well_leave_their_connection_to_the_next(rig: Rig) -> None:
    store = rig.open(num_readers=1)
    rig.put(store, *range(10))

    def num_connected() -> int:
        return int(rig.server.admin().info("stats")["total_connections_received"])

    assert rig.get(store, 0)
    before = num_connected()
    assert all(rig.get(store, number) for number in range(10))
    assert num_connected() == before + 1, "the one that asks for this"


def test_header_and_parts_end_with_the_blocks_time_on_the_server_too(rig: Rig) -> None:
    mine, theirs = rig.open(), rig.open()
    rig.put(theirs, 1, ttl_s=0.25)
    rig.put(theirs, 2)
    rig.ask(mine, 1, 2)
    assert rig.get(mine, 1)
    rig.server.wait_until_expired(*(part_name(rig.key(1), part) for part in (0, 1)), header_name(rig.key(1)))
    assert not rig.get(mine, 1)
    assert rig.get(mine, 2)
    rig.ask(mine, 1)
    assert mine.peek([rig.key(1)]) == (None,)
    assert mine.why_absent(rig.key(1)).cause in {Cause.EXPIRED, Cause.MISSING}


def test_a_use_puts_the_end_off_on_the_server_too_in_all_parts_and_a_hard_end_does_not_move(rig: Rig) -> None:
    mine, theirs = rig.open(), rig.open()
    salted = NAMESPACE.with_salt("acme")
    mine.set_retention(Retention(tenants={salted.salt: TenantRule(Lifetime(hard_ttl_s=1.5))}))
    names = {
        number: [header_name(rig.key(number)), *(part_name(rig.key(number), part) for part in (0, 1))]
        for number in (1, 2)
    }
    mine.put(NAMESPACE, rig.key(1), b"", rig.payload(1), ttl_s=0.5)
    mine.put(salted, rig.key(2), b"", rig.payload(2), ttl_s=0.5)
    assert mine.flush(10.0)
    mine.lookup([rig.key(1)], ttl_s=60.0).release()
    mine.lookup([rig.key(2)], ttl_s=60.0).release()
    assert mine.flush(10.0)
    ends = {
        number: {rig.server.admin().pexpiretime(name.decode()) for name in names[number]} for number in (1, 2)
    }
    assert len(ends[1]) == len(ends[2]) == 1, "all parts with the header"
    assert rig.counts(mine)["amended_headers"] == 2
    now_ms = time.time_ns() // 1_000_000
    assert now_ms + 50_000 < min(ends[1])
    assert min(ends[2]) < now_ms + 1500
    rig.server.wait_until_expired(*names[2])
    assert not rig.get(mine, 2)
    rig.ask(theirs, 1, 2)
    assert (rig.get(theirs, 1), rig.get(theirs, 2)) == (True, False)


def test_a_user_who_may_not_rewrite_headers_goes_on_with_all_else(rig: Rig) -> None:
    mine = rig.open()
    rig.put(mine, 1, ttl_s=10.0)
    rig.server.admin().execute_command("ACL", "SETUSER", "default", "-watch")  # type: ignore[no-untyped-call]  # redis-py has no types there
    try:
        mine.lookup([rig.key(1)], ttl_s=60.0).release()
        assert mine.flush(10.0)
        assert rig.counts(mine)["amend_faults"] == 1
        rig.put(mine, 2)
        assert rig.get(mine, 1)
        assert rig.get(mine, 2)
        assert rig.counts(mine)["breaker_openings"] == 0
    finally:
        rig.server.admin().execute_command("ACL", "SETUSER", "default", "+watch")  # type: ignore[no-untyped-call]  # redis-py has no types there
