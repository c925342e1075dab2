from __future__ import annotations

from dataclasses import replace

from kvstore.seams import Offer, Verdict
from policies.admission import WorthLoading, whole_blocks_that_fit


def offer(num_tokens: int = 16, footprint_bytes: int = 100) -> Offer:
    return Offer("disk", num_tokens, block_tokens=16, footprint_bytes=footprint_bytes, budget_bytes=100)


def test_a_whole_block_that_fits_is_admitted() -> None:
    assert whole_blocks_that_fit(offer()) is Verdict.ADMITTED


def test_a_partial_block_is_never_admitted() -> None:
    assert whole_blocks_that_fit(offer(num_tokens=15)) is Verdict.NOT_WHOLE


def test_a_block_larger_than_the_tier_is_not_admitted() -> None:
    assert whole_blocks_that_fit(offer(footprint_bytes=101)) is Verdict.TOO_LARGE


def test_a_block_that_is_never_loaded_faster_than_computed_is_not_admitted() -> None:
    admission = WorthLoading(lambda offer: offer.tier == "disk")
    assert admission(offer()) is Verdict.NEVER_FASTER
    assert admission(replace(offer(), tier="host")) is Verdict.ADMITTED


def test_what_a_block_is_worth_is_not_asked_where_its_size_decides() -> None:
    def never_faster(_offer: Offer) -> bool:
        raise AssertionError

    assert WorthLoading(never_faster)(offer(num_tokens=15)) is Verdict.NOT_WHOLE
