"""Media that stall, or hold what nobody of ours wrote: no request fails, waits, or costs others anything."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from threading import Event as Flag

import pytest

from backends.faulty import Fault, Faulty, Operation, stall
from backends.host import HostBackend
from backends.throttle import Throttled
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.request import Mode
from engine_adapter.engine.verifying import MOST_WITNESSES, Verifier
from kvstore.arena import Arena
from kvstore.frame import Header, checksum
from kvstore.seams import Transfer
from kvstore.tier import TierSpec
from tests.engine_adapter.rig import (
    SLOT_BYTES,
    CleanIds,
    Events,
    MakeRig,
    Rig,
    greedy,
    host_tier,
    prompt_of,
    tier,
)
from tests.engine_adapter.test_modes import bytes_of, stored, swapped
from tests.eventually import eventually
from tests.kvstore.conftest import SharedDict


def gated(gate: Flag) -> Faulty:
    """Return a medium that is read when ``gate`` is set."""
    return Faulty(HostBackend(Arena(2**24)), [Fault(Operation.GET, stall(gate.wait))])


def answering_when(gate: Flag) -> SharedDict:
    """Return a shared medium that is silent until ``gate`` is set."""

    def wait(operation: str, _key: bytes) -> None:
        if operation == "resident":
            gate.wait()

    return SharedDict(fail=wait)


def counted_turns(rig: Rig) -> Callable[[], int]:
    """Count the turns of the engine's loop from now on."""
    turns, turn = [0], rig.engine._loop.turn

    def count() -> bool:
        turns[0] += 1
        return turn()

    rig.engine._loop.turn = count  # type: ignore[method-assign]
    return lambda: turns[0]


def test_a_medium_that_does_not_answer_does_not_keep_the_engine_turning(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate, answers = Flag(), Flag()
    answers.set()
    rig = make_rig(
        tiers=lambda _arena: [tier(gated(gate), "disk"), tier(answering_when(answers), "redis")],
        load_deadline_s=30.0,
    )
    prompt = prompt_of(75, 1)
    stored(rig, prompt)
    answers.clear()
    rig.store.evict(rig.keys(prompt)[:1])
    num_turns, events = counted_turns(rig), Events()

    rig.engine.submit(greedy(prompt), events)
    time.sleep(0.3)
    gate_was_closed, turns = not events.seen, num_turns()
    gate.set()

    assert events.finished().reason == "length"
    answers.set()
    assert events.token_ids == clean_ids(prompt, 12)
    assert gate_was_closed
    assert turns < 200, "a loop that spins makes thousands"


def of_size(raw_bytes: int) -> Callable[[Header, bytes], tuple[bytes, bytes]]:
    """Return what makes a sound frame of another size out of one of ours."""

    def change(header: Header, payload: bytes) -> tuple[bytes, bytes]:
        payload = payload[:raw_bytes]
        facts = replace(
            header, raw_bytes=raw_bytes, stored_bytes=min(raw_bytes, 2**20), checksum=checksum(payload)
        )
        return facts.pack(), payload

    return change


@pytest.mark.parametrize("raw_bytes", [0, 64, 300 * SLOT_BYTES, 2**40])
def test_sound_frames_of_another_size_are_no_blocks_of_ours(
    make_rig: MakeRig, clean_ids: CleanIds, raw_bytes: int
) -> None:
    medium = SharedDict()
    rig = make_rig(tiers=lambda arena: [host_tier(arena, 256 * SLOT_BYTES), tier(medium, "redis", 2**50)])
    prompt, other = prompt_of(75, 1), prompt_of(75, 2)
    stored(rig, prompt)
    stored(rig, other)
    frames = {key: medium.frames[key] for key in rig.keys(prompt)}
    rig.store.evict(rig.keys(prompt))
    assert rig.store.flush(5)
    medium.frames |= {
        key: of_size(raw_bytes)(Header.unpack(header), payload) for key, (header, payload) in frames.items()
    }

    for _ in range(2):
        answer = rig.engine.generate(greedy(prompt))
        assert (answer.reason, answer.error) == ("length", None)
        assert answer.token_ids == clean_ids(prompt, 12)
        rig.forget_device()

    assert rig.store.peek(rig.keys(other)) == ("host",) * 9, "no room is made for what cannot be used"
    assert rig.engine.generate(greedy(other)).usage.cached_tokens > 0


@pytest.mark.parametrize("raw_bytes", [64, 0])
def test_a_block_of_another_size_from_any_tier_is_computed(
    make_rig: MakeRig, clean_ids: CleanIds, raw_bytes: int
) -> None:
    rig, prompt = make_rig(), prompt_of(75, 1)
    stored(rig, prompt)
    swapped(rig, prompt, 3, bytes(raw_bytes))

    for mode in (Mode.SERVE, Mode.VERIFY):
        answer = rig.engine.generate(greedy(prompt, mode=mode))
        assert answer.error is None
        assert answer.token_ids == clean_ids(prompt, 12)
        rig.forget_device()


def test_a_transfer_of_nothing_teaches_nothing() -> None:
    costs = CostBook(100)
    costs.note_transfer(Transfer("disk", 1.0, 2.0, 0, 0, 0.0))
    assert costs.loads(3.0) == {}


def test_what_went_into_quarantine_after_it_had_arrived_is_not_used(
    make_rig: MakeRig, clean_ids: CleanIds
) -> None:
    gate = Flag()
    rig = make_rig(tiers=lambda _arena: [tier(gated(gate), "disk")], load_deadline_s=30.0)
    prompt, events = prompt_of(75, 1), Events()
    stored(rig, prompt)
    gate.set()
    wrong = bytes_of(rig, prompt, 3)
    swapped(rig, prompt, 4, wrong)
    gate.clear()
    rig.engine.submit(greedy(prompt), events)
    running = rig.engine._scheduler.running
    eventually(lambda: bool(running) and 4 in running[0].ownership.in_flight)

    def find_it_wrong() -> None:
        ticket = running[0].ownership._flights[4].ticket
        gate.set()
        assert ticket.wait(10)
        rig.store.quarantine(rig.keys(prompt)[4])

    rig.on_engine_thread(find_it_wrong)

    assert events.finished().reason == "length"
    assert events.token_ids == clean_ids(prompt, 12)


def test_an_inquiry_of_a_request_that_is_cancelled_is_given_up(make_rig: MakeRig) -> None:
    answers = Flag()
    rig = make_rig(tiers=lambda _arena: [tier(answering_when(answers), "redis")], max_sequences=1)
    first, second = Events(), Events()
    rig.engine.submit(greedy(prompt_of(75, 1), 500), first)
    handle = rig.engine.submit(greedy(prompt_of(75, 2)), second)
    waiting = rig.engine._scheduler.waiting
    eventually(lambda: bool(waiting) and waiting[0].inquiry is not None)
    inquiry = waiting[0].inquiry

    rig.engine.cancel(handle)
    assert second.finished().reason == "cancelled"

    assert inquiry is not None
    assert not inquiry.is_wanted()
    answers.set()
    first.finished(30)


def test_verifying_does_not_blame_a_tier_that_is_merely_slow(make_rig: MakeRig, clean_ids: CleanIds) -> None:
    def tiers(_arena: Arena) -> list[TierSpec]:
        return [
            tier(Throttled(HostBackend(Arena(2**24)), 1e9, 0.05), "disk", num_readers=1, fault_threshold=1)
        ]

    rig = make_rig(tiers=tiers, load_deadline_s=0.001, max_batched_tokens=32, verify_share=1.0)
    prompt = prompt_of(300, 1)
    stored(rig, prompt)

    answer = rig.engine.generate(greedy(prompt, mode=Mode.VERIFY))

    assert answer.token_ids == clean_ids(prompt, 12)
    assert rig.store.statistics().tiers[-1].counts["late_loads"] == 0


def test_verifying_many_prompts_at_once_takes_a_bounded_share_of_staging_memory(make_rig: MakeRig) -> None:
    gate, num_begun = Flag(), [0]

    def tiers(_arena: Arena) -> list[TierSpec]:
        return [tier(gated(gate), "disk")]

    rig = make_rig(tiers=tiers, num_blocks=200, max_batched_tokens=32, verify_share=1.0)
    prompts = [prompt_of(300, seed) for seed in range(4)]
    for prompt in prompts:
        stored(rig, prompt)
    witnesses = rig.engine._verifier._witnesses
    summon = Verifier.summon

    def counted(self: Verifier, *args: object) -> None:
        summon(self, *args)  # type: ignore[arg-type]
        num_begun[0] = max(num_begun[0], sum(map(len, witnesses.values())))

    rig.engine._verifier.summon = counted.__get__(rig.engine._verifier)  # type: ignore[method-assign]
    rig.generate_together([greedy(prompt, 1, mode=Mode.VERIFY) for prompt in prompts])
    gate.set()
    eventually(lambda: rig.store.num_holds == 0)

    assert 0 < num_begun[0] <= MOST_WITNESSES
