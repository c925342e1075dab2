from __future__ import annotations

from kvstore.seams import Choice, Offer, PlanRequest
from policies.admission import whole_blocks_that_fit
from policies.reload import AlwaysLoad


def offer(num_tokens: int = 16, footprint_bytes: int = 100) -> Offer:
    return Offer(num_tokens, block_tokens=16, footprint_bytes=footprint_bytes, budget_bytes=100)


def test_a_whole_block_that_fits_is_admitted() -> None:
    assert whole_blocks_that_fit(offer())


def test_a_partial_block_is_never_admitted() -> None:
    assert not whole_blocks_that_fit(offer(num_tokens=15))


def test_a_block_larger_than_the_tier_is_not_admitted() -> None:
    assert not whole_blocks_that_fit(offer(footprint_bytes=101))


def test_always_load_loads_what_is_there_and_computes_the_holes() -> None:
    request = PlanRequest(("device", None, "disk"), 60, 16, 1000, num_waiting=0, num_running=0)
    assert AlwaysLoad().plan(request).choices == (Choice.LOAD, Choice.COMPUTE, Choice.LOAD)
