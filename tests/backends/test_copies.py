"""Copies on streams: what they are ordered behind, what is ordered behind them, what they keep."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from backends.copies import Copies, InlineCopies
from kvstore.clock import Clock
from tests.late_cuda import LateCuda, LateEvent, LateStream


def tensors(*values: float) -> list[torch.Tensor]:
    return [torch.full((4,), value) for value in values]


@pytest.mark.parametrize("direction", ["out", "into"])
def test_inline_a_copy_is_complete_when_it_is_returned(direction: str) -> None:
    times = iter([1.0, 1.5])
    copies: Copies = InlineCopies(Clock(monotonic_s=lambda: next(times)))
    targets = tensors(0, 0)
    copy = getattr(copies, direction)(targets, tensors(1, 2))
    assert (copy.done(), copy.took_s) == (True, 0.5)
    copy.wait()
    copy.precede_compute()
    assert [target.tolist() for target in targets] == [[1] * 4, [2] * 4]


@pytest.mark.parametrize("direction", ["out", "into"])
def test_on_a_stream_a_copy_is_under_way_until_its_event_is_reached(direction: str) -> None:
    cuda, targets = LateCuda(), tensors(0, 0)
    copy = getattr(cuda.copies, direction)(targets, tensors(1, 2))
    assert not copy.done()
    assert targets[0].tolist() == [0] * 4
    getattr(cuda, direction).run()
    assert copy.done()
    assert copy.took_s == pytest.approx(0.002)
    assert [target.tolist() for target in targets] == [[1] * 4, [2] * 4]


def test_waiting_makes_what_began_before_it_and_no_more() -> None:
    cuda = LateCuda()
    (first, second, third) = targets = tensors(0, 0, 0)
    copies = [cuda.copies.out([target], tensors(1)) for target in targets]
    copies[1].wait()
    assert [copy.done() for copy in copies] == [True, True, False]
    assert [float(target[0]) for target in (first, second, third)] == [1, 1, 0]


def test_a_copy_begins_after_what_is_to_be_computed_before_it() -> None:
    cuda, (kept, stored) = LateCuda(), tensors(0, 0)
    cuda.compute.is_prompt = False
    cuda.compute.add(lambda: kept.fill_(3))
    cuda.copies.out([stored], [kept])
    cuda.compute.add(lambda: kept.fill_(4))
    cuda.out.run()
    assert stored.tolist() == [3] * 4


def test_a_load_is_made_after_what_still_reads_its_place() -> None:
    cuda, (place, read, loaded) = LateCuda(), tensors(1, 0, 2)
    cuda.compute.is_prompt = False
    cuda.compute.add(lambda: read.copy_(place))
    cuda.copies.into([place], [loaded])
    cuda.into.run()
    assert read.tolist() == [1] * 4
    assert place.tolist() == [2] * 4


def test_what_is_computed_after_a_load_sees_it_without_anybody_waiting() -> None:
    cuda, (place, read) = LateCuda(), tensors(0, 0)
    cuda.compute.is_prompt = False
    copy = cuda.copies.into([place], tensors(2))
    copy.precede_compute()
    cuda.compute.add(lambda: read.copy_(place))
    assert not copy.done()
    cuda.compute.run()
    assert read.tolist() == [2] * 4


def test_both_ends_are_kept_until_the_copy_is_complete_and_no_longer() -> None:
    cuda, (source, target) = LateCuda(), tensors(1, 0)
    ends = [weakref.ref(source), weakref.ref(target)]
    copy = cuda.copies.out([target], [source])
    del source, target
    gc.collect()
    assert all(end() is not None for end in ends)
    cuda.out.run()
    assert copy.done()
    gc.collect()
    assert all(end() is None for end in ends)


def test_a_copy_that_fails_half_way_leaves_nothing_under_way() -> None:
    cuda, (first, second) = LateCuda(), tensors(0, 0)
    with pytest.raises(AssertionError):
        cuda.copies.out([first, second], [torch.ones(4), torch.ones(5)])
    assert first.tolist() == [1] * 4
    assert len(cuda.out) == 0


def test_a_copy_whose_end_cannot_be_marked_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, (source, target) = LateCuda(), tensors(1, 0)
    recorded = LateEvent.record

    def record(event: LateEvent, stream: LateStream) -> None:
        if len(stream) > 2:
            raise RuntimeError("no more events")
        recorded(event, stream)

    monkeypatch.setattr(LateEvent, "record", record)
    with pytest.raises(RuntimeError, match="no more events"):
        cuda.copies.out([target], [source])
    assert target.tolist() == [1] * 4
    assert len(cuda.out) == 0
