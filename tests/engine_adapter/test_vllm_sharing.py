"""Blocks that vLLM shares before they are loaded: what is undone when their load fails."""

from __future__ import annotations

from types import SimpleNamespace

from backends.faulty import Fault, Operation, flip_byte
from engine_adapter.vllm.readers import Readers
from tests.engine_adapter.vllm_rig import BLOCK, PROMPT, WHOLE, OpenVllm, request


def test_who_reads_a_block_that_has_failed_begins_again_before_it() -> None:
    readers = Readers(BLOCK)
    before, loads, shares, apart = (SimpleNamespace(num_computed_tokens=40) for _ in range(4))
    readers.note_admitted(before, [1, 2])
    readers.note_load([1, 2, 3])
    readers.note_admitted(loads, [1, 2, 3, 4])
    readers.note_admitted(shares, [1, 2, 3, 5, 6])
    readers.note_admitted(apart, [1, 7, 8])

    assert readers.undo({3, 99}) == {3, 4, 5, 6}
    assert [each.num_computed_tokens for each in (before, loads, shares, apart)] == [40, 8, 8, 40]
    assert readers.undo({1}) == set()


def test_nobody_begins_again_where_nothing_has_failed() -> None:
    readers, loads = Readers(BLOCK), SimpleNamespace(num_computed_tokens=40)
    readers.note_load([1, 2])
    readers.note_admitted(loads, [1, 2, 3])
    assert readers.undo(set()) == set()
    assert readers.undo({1}) == set()
    assert loads.num_computed_tokens == 40


def test_a_request_that_vllm_gave_blocks_of_another_ones_load_begins_again_with_it(
    open_vllm: OpenVllm,
) -> None:
    vllm = open_vllm([Fault(Operation.GET, flip_byte(17), 4)], loading="sync")
    vllm.serve(request(PROMPT))
    assert vllm.store.flush(10)
    loads, shares = request(PROMPT), request(PROMPT, prompt_embeds=object())
    table, other = list(range(11)), [*range(9), 20, 21]
    assert vllm.admit(loads, table) == (WHOLE, False)
    vllm.side.allocated(shares, other, 0)
    loads.num_computed_tokens = shares.num_computed_tokens = 42
    vllm.step({loads.request_id: (loads, table, WHOLE, 42)}, may_fail=True)

    first = min(vllm.last_failed)
    assert loads.num_computed_tokens == shares.num_computed_tokens == first * BLOCK
    assert vllm.last_spoilt == {*table[first:], *other[first:]}


def test_no_step_waits_for_a_load_where_vllm_cannot_undo_it(open_vllm: OpenVllm) -> None:
    vllm = open_vllm(loading="sync")
    vllm.serve(request(PROMPT))
    assert vllm.side.num_to_load(request(PROMPT), 0) == (WHOLE, False)
    vllm.promiser.may_wait = False
    assert vllm.side.num_to_load(request(PROMPT), 0) == (WHOLE, True)
