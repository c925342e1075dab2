from __future__ import annotations

import pytest

from backends.copies import Copy
from engine_adapter.engine.storing import Storable, StoreQueue
from kvstore.hints import Hint
from kvstore.keys import chain_keys
from tests.engine_adapter.rig import BLOCK_TOKENS, MakeRig, Rig, greedy, prompt_of


class Slow:
    """A copy that is complete once somebody has waited for it."""

    took_s = 0.0
    is_done = False

    def done(self) -> bool:
        return self.is_done

    def wait(self) -> None:
        self.is_done = True

    def precede_compute(self) -> None:
        pass


def publish(rig: Rig, queue: StoreQueue, num_blocks: int) -> list[bytes]:
    """Publish blocks of a prompt and queue them; nobody else holds them then."""
    keys = chain_keys(rig.model.namespace.digest, prompt_of(num_blocks * BLOCK_TOKENS, 3), BLOCK_TOKENS)
    blocks = rig.pool.allocate(num_blocks)
    assert blocks is not None
    for index, (parent, key, block) in enumerate(zip([b"", *keys], keys, blocks, strict=False)):
        assert rig.pool.publish(block, key, parent)
        queue.add(Storable(rig.model.namespace, key, parent, index * BLOCK_TOKENS, None))
    rig.pool.release(blocks)
    return keys


def stored(rig: Rig, keys: list[bytes]) -> int:
    hit = rig.store.lookup(keys)
    hit.release()
    host = rig.store.statistics().tiers[1]
    return host.num_blocks


def test_a_step_stores_two_blocks_and_an_idle_turn_eight(make_rig: MakeRig) -> None:
    rig = make_rig()
    queue = StoreQueue(rig.pool, rig.store)
    keys = publish(rig, queue, 12)
    assert stored(rig, keys) == 0
    assert queue.store_some(is_idle=False)
    assert stored(rig, keys) == 2
    assert queue.store_some(is_idle=True)
    assert stored(rig, keys) == 10
    assert queue.store_some(is_idle=True)
    assert not queue.store_some(is_idle=True)
    assert stored(rig, keys) == 12


def test_what_exceeds_a_quarter_of_the_pool_is_stored_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=40)
    queue = StoreQueue(rig.pool, rig.store)
    keys = publish(rig, queue, 30)
    assert queue.store_some(is_idle=False)
    assert stored(rig, keys) == 20
    queue.store_all()


def test_a_waiting_block_is_not_evicted(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=8)
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 2)
    assert rig.pool.num_available == 6
    assert rig.pool.allocate(7) is None
    queue.store_all()
    assert rig.pool.num_available == 8


def test_storing_a_block_is_no_use_of_it(make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig()
    touched = list[bytes]()
    monkeypatch.setattr(rig.pool._policy, "touch", lambda key, _now_s: touched.append(key))
    queue = StoreQueue(rig.pool, rig.store)
    publish(rig, queue, 4)
    queue.store_all()
    assert touched == []


def test_a_request_gets_the_blocks_that_only_wait_to_be_stored(make_rig: MakeRig) -> None:
    rig = make_rig(num_blocks=12)
    for seed in range(6):
        completion = rig.engine.generate(greedy(prompt_of(70, seed), 8))
        assert completion.reason == "length"
    assert rig.engine.flush()


def test_a_block_that_cannot_be_read_costs_its_storing_alone(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    queue = StoreQueue(rig.pool, rig.store)
    keys = publish(rig, queue, 3)
    read, numbers = rig.pool.read_block, iter(range(3))

    def read_all_but_the_second(block: int, out: memoryview) -> Copy:
        if next(numbers) == 1:
            raise RuntimeError("no such memory")
        return read(block, out)

    monkeypatch.setattr(rig.pool, "read_block", read_all_but_the_second)
    queue.store_all()
    assert stored(rig, keys) == 2
    assert rig.pool.num_available == rig.pool.num_blocks
    assert rig.store.num_holds == 0


def test_what_has_ended_while_it_waited_is_not_stored(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    queue = StoreQueue(rig.pool, rig.store)
    keys = publish(rig, queue, 3)
    monkeypatch.setattr(rig.store, "ended", lambda asked: [key for key in asked if key == keys[1]])
    queue.store_all()
    assert stored(rig, keys) == 2
    assert rig.pool.num_available == rig.pool.num_blocks


def test_a_hint_waits_for_copies_that_are_under_way(
    make_rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = make_rig()
    queue = StoreQueue(rig.pool, rig.store)
    keys = publish(rig, queue, 2)
    told = list[Hint]()
    monkeypatch.setattr(rig.pool, "hear", lambda _keys, hint: told.append(hint))
    monkeypatch.setattr(rig.pool, "read_block", lambda _block, _out: Slow())
    queue.tell(keys, Hint(stop="stop"))
    queue.store_some(is_idle=False)
    assert told == []
    queue.store_all()
    assert told == [Hint(stop="stop")]
