"""Which blocks a tier takes at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvstore.seams import Offer, Verdict


def whole_blocks_that_fit(offer: Offer) -> Verdict:
    """Admit a block that is whole and no larger than the tier's budget."""
    if offer.num_tokens != offer.block_tokens:
        return Verdict.NOT_WHOLE
    return Verdict.ADMITTED if offer.footprint_bytes <= offer.budget_bytes else Verdict.TOO_LARGE


@dataclass(frozen=True, slots=True)
class WorthLoading:
    """Admit what ``whole_blocks_that_fit`` does, but for blocks that are ``never_faster`` to load.

    ``never_faster`` says whether a block could at no time be loaded from that tier faster than it is
    computed. It is called from any thread, and must be quick.
    """

    never_faster: Callable[[Offer], bool]

    def __call__(self, offer: Offer) -> Verdict:
        """Return the verdict on one offer."""
        verdict = whole_blocks_that_fit(offer)
        if verdict is Verdict.ADMITTED and self.never_faster(offer):
            return Verdict.NEVER_FASTER
        return verdict
