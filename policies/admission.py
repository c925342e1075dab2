"""Which blocks a tier takes at all."""

from __future__ import annotations

from kvstore.seams import Offer


def whole_blocks_that_fit(offer: Offer) -> bool:
    """Admit a block that is whole and no larger than the tier's budget."""
    return offer.num_tokens == offer.block_tokens and offer.footprint_bytes <= offer.budget_bytes
