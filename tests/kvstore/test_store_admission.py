"""A tier that could never serve a block faster than it is computed does not get it; the others do."""

from __future__ import annotations

import pytest

from kvstore.seams import Offer
from kvstore.tier import WriteMode
from policies.admission import WorthLoading
from tests.kvstore.conftest import BLOCK_BYTES, Rig


class Judge:
    """Says which tiers are never faster, and remembers what it was asked."""

    def __init__(self, *never_faster: str) -> None:
        self.never_faster = set(never_faster)
        self.offers: list[Offer] = []

    def __call__(self, offer: Offer) -> bool:
        self.offers.append(offer)
        return offer.tier in self.never_faster


def test_a_refused_tier_costs_only_that_tier(rig: Rig) -> None:
    store = rig.open(admission=WorthLoading(Judge("disk")))
    assert rig.put(store, 1) == 1
    assert rig.tiers(store, 1) == ["host"]
    assert rig.medium.frames == {}
    assert rig.counts(store, "disk")["not_worth_storing"] == 1
    assert rig.counts(store, "disk")["dropped_stores"] == 0


def test_a_block_that_memory_refuses_goes_to_the_disk(rig: Rig) -> None:
    store = rig.open(admission=WorthLoading(Judge("host")))
    assert rig.put(store, 1) == 1
    assert rig.tiers(store, 1) == ["disk"]
    assert rig.get(store, 1), "and is not promoted"
    assert rig.tiers(store, 1) == ["disk"]
    assert rig.counts(store, "host")["not_worth_storing"] == 2


def test_a_block_that_no_tier_takes_is_counted_once_in_each(rig: Rig) -> None:
    store = rig.open(admission=WorthLoading(Judge("host", "disk")))
    assert rig.put(store, 1) == 0
    for tier in ("host", "disk"):
        counts = rig.counts(store, tier)
        assert (counts["not_worth_storing"], counts["dropped_stores"]) == (1, 0)


def test_a_block_refused_for_its_size_is_a_dropped_store(rig: Rig) -> None:
    store = rig.open()
    assert store.reserve(rig.namespace, rig.key(1), b"", BLOCK_BYTES, num_tokens=15) is None
    for tier in ("host", "disk"):
        counts = rig.counts(store, tier)
        assert (counts["not_worth_storing"], counts["dropped_stores"]) == (0, 1)


@pytest.mark.parametrize("write_mode", list(WriteMode))
def test_every_way_down_offers_the_block_with_its_place_in_the_prompt(
    rig: Rig, write_mode: WriteMode
) -> None:
    judge = Judge("disk")
    store = rig.open(host_blocks=1, write_mode=write_mode, admission=WorthLoading(judge))
    assert store.put(rig.namespace, rig.key(1), b"", rig.payload(1), first_token=48)
    store.lookup([rig.key(1)]).release()
    assert store.put(rig.namespace, rig.key(2), b"", rig.payload(2), first_token=64)
    assert store.flush(5.0)
    offers = {offer.first_token for offer in judge.offers if offer.tier == "disk"}
    assert 48 in offers
    assert rig.medium.frames == {}
    assert rig.counts(store, "disk")["not_worth_storing"] >= 1


def test_a_promotion_is_offered_with_what_is_known_of_its_place(rig: Rig) -> None:
    rig.put(rig.open(), 1)
    rig.stores[0].close()
    judge = Judge()
    store = rig.open(admission=WorthLoading(judge))
    assert rig.get(store, 1)
    assert [(offer.tier, offer.first_token) for offer in judge.offers] == [("host", None)]


def test_blocks_are_judged_by_their_place_in_the_prompt(rig: Rig) -> None:
    store = rig.open(host_blocks=0, admission=WorthLoading(lambda offer: offer.first_token == 0))
    assert not store.put(rig.namespace, rig.key(1), b"", rig.payload(1), first_token=0)
    assert store.put(rig.namespace, rig.key(2), b"", rig.payload(2), first_token=16)


def test_a_verdict_is_kept_for_a_moment_and_then_asked_for_again(rig: Rig) -> None:
    judge = Judge("disk")
    store = rig.open(admission=WorthLoading(judge))
    rig.put(store, 1)
    rig.put(store, 2)
    assert len(judge.offers) == 2, "once for each tier"
    judge.never_faster.clear()
    rig.now_s += 1.0
    rig.put(store, 3)
    assert rig.medium.frames.keys() == {rig.key(3)}
    assert rig.counts(store, "disk")["not_worth_storing"] == 2
