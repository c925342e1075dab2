"""Whatever happens in whatever order: books in order, budgets kept, every block's bytes its own."""

from __future__ import annotations

import random

import pytest

from kvstore.errors import BackendError, LeaseExpiredError
from kvstore.leases import Hit
from kvstore.loading import LoadedBlock, Ticket
from kvstore.tier import WriteMode
from tests.kvstore.conftest import Rig, SharedDict

NUM_BLOCKS = 24


class Life:
    """Random operations on a store whose medium is flaky."""

    num_stores = 1  # on the same medium

    def __init__(self, rig: Rig, seed: int, write_mode: WriteMode) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.store = rig.open(host_blocks=4, disk_blocks=9, write_mode=write_mode)
        self.hits: list[Hit] = []
        self.tickets: list[tuple[bytes, Ticket]] = []
        self.blocks: list[tuple[bytes, LoadedBlock]] = []
        rig.medium.fail = self.flaky

    def flaky(self, operation: str, _key: bytes) -> None:
        if operation != "close" and self.rng.random() < 0.03:
            raise BackendError("disk", operation, "flaky")

    def some_keys(self) -> list[bytes]:
        return [self.rig.key(self.rng.randrange(NUM_BLOCKS)) for _ in range(4)]

    def put(self) -> None:
        start = self.rng.randrange(NUM_BLOCKS)
        self.rig.put(self.store, *range(start, min(start + 4, NUM_BLOCKS)), flush=False)

    def look_up(self) -> None:
        self.hits.append(self.store.lookup(self.some_keys(), lease_s=self.rng.choice([0.5, 50.0])))

    def load(self) -> None:
        hit, index = (
            self.rng.choice(self.hits or [self.store.lookup(self.some_keys())]),
            self.rng.randrange(4),
        )
        try:
            self.tickets.append((hit.keys[index], self.store.load(hit, index, self.rig.now_s + 1.0)))
        except LeaseExpiredError:
            assert not hit.is_leased
        if hit not in self.hits:
            hit.release()

    def take(self) -> None:
        if not self.tickets:
            return
        key, ticket = self.tickets.pop(self.rng.randrange(len(self.tickets)))
        if self.rng.random() < 0.3:
            ticket.abandon()
        elif ticket.wait(5.0) and (block := ticket.take()) is not None:
            self.blocks.append((key, block))

    def let_go(self) -> None:
        if self.blocks:
            key, block = self.blocks.pop(self.rng.randrange(len(self.blocks)))
            assert block.data == self.rig.payload(self.rig.number(key)), "lent bytes never change"
            block.release()

    def release(self) -> None:
        if self.hits:
            self.hits.pop(self.rng.randrange(len(self.hits))).release()

    def forget(self) -> None:
        self.store.evict(self.some_keys())

    def tick(self) -> None:
        self.rig.now_s += self.rng.choice([0.1, 1.0, 6.0])

    def check(self) -> None:
        self.store.check()
        _, host, disk = self.store.statistics().tiers
        assert host.used_bytes <= host.budget_bytes
        assert disk.used_bytes <= disk.budget_bytes
        assert self.rig.medium.stats().occupied_bytes <= self.num_stores * disk.budget_bytes

    def end(self) -> None:
        self.rig.medium.fail = lambda _operation, _key: None
        for _, ticket in self.tickets:
            ticket.abandon()
        for hit in self.hits:
            hit.release()
        for _, block in self.blocks:
            block.release()
        assert self.store.flush(5.0)


class SharedLife(Life):
    """The same on a medium that another process uses as well, and that loses a block now and then."""

    num_stores = 2

    def __init__(self, rig: Rig, seed: int, write_mode: WriteMode) -> None:
        rig.medium = SharedDict()
        super().__init__(rig, seed, write_mode)
        self.other = rig.open(host_blocks=4, disk_blocks=9, write_mode=write_mode)

    def inquire(self) -> None:
        deadline_s = self.rig.now_s + self.rng.choice([0.0, 1.0])
        inquiry = self.store.inquire(self.some_keys(), deadline_s)
        if inquiry is not None and self.rng.random() < 0.7:
            assert inquiry.wait(5.0)
        elif inquiry is not None:
            inquiry.abandon()

    def others(self) -> None:
        self.store, self.other = self.other, self.store
        self.rng.choice([self.put, self.forget, self.inquire])()
        self.check()
        self.store, self.other = self.other, self.store

    def quarantine(self) -> None:
        self.store.quarantine(self.rig.key(self.rng.randrange(NUM_BLOCKS)))

    def clear(self) -> None:
        self.store.clear(self.rng.choice(["host", "disk", None]))

    def lose(self) -> None:
        self.rig.medium.frames.pop(self.rig.key(self.rng.randrange(NUM_BLOCKS)), None)

    def end(self) -> None:
        super().end()
        assert self.other.flush(5.0)


@pytest.mark.parametrize("write_mode", list(WriteMode))
@pytest.mark.parametrize("seed", range(8))
def test_a_random_life_on_a_shared_medium(rig: Rig, seed: int, write_mode: WriteMode) -> None:
    life = SharedLife(rig, seed, write_mode)
    often = [
        life.put,
        life.inquire,
        life.others,
        life.look_up,
        life.load,
        life.take,
        life.let_go,
        life.release,
    ]
    actions = [*often, *often, life.forget, life.tick, life.lose, life.quarantine, life.clear]
    for _ in range(400):
        life.rng.choice(actions)()
        life.check()
    life.end()
    life.check()


@pytest.mark.parametrize("write_mode", list(WriteMode))
@pytest.mark.parametrize("seed", range(8))
def test_a_random_life(rig: Rig, seed: int, write_mode: WriteMode) -> None:
    life = Life(rig, seed, write_mode)
    actions = [
        life.put,
        life.put,
        life.look_up,
        life.load,
        life.take,
        life.let_go,
        life.release,
        life.forget,
        life.tick,
    ]
    for _ in range(400):
        life.rng.choice(actions)()
        life.check()
    life.end()
