"""What a request is promised: how many blocks behind those that vLLM has are to be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_adapter.engine.request import Mode
from engine_adapter.opening import HOST
from engine_adapter.vllm.announcing import Announcer
from engine_adapter.vllm.counts import Counts
from engine_adapter.vllm.deciding import Decider
from engine_adapter.vllm.probing import Prober
from engine_adapter.vllm.settings import AdapterSettings
from engine_adapter.vllm.tracking import Tracked
from engine_adapter.witnesses import EverySoMany
from kvstore.interface import BlockStore
from policies.leading import Leading


class Promise(NamedTuple):
    """Blocks from ``first`` on; ``tiers`` says where all blocks of the prompt were when it was given."""

    first: int
    leading: Leading
    tiers: Sequence[str | None]
    until_s: float

    @property
    def loaded_tiers(self) -> Sequence[str | None]:
        """Where each block comes from that is to be loaded."""
        return self.tiers[self.first : self.first + self.leading.num_blocks]


@dataclass(slots=True)
class Promiser:
    """Looks prompts up and decides. For the scheduler's thread alone."""

    store: BlockStore
    decider: Decider
    prober: Prober
    settings: AdapterSettings
    counts: Counts
    announcer: Announcer | None
    may_wait: bool = False
    """Whether a step may load what it needs itself: others might compute with what has failed to load."""
    _given: dict[str, Promise] = field(default_factory=dict)
    _verified: EverySoMany = field(init=False)

    def __post_init__(self) -> None:
        self._verified = EverySoMany(self.settings.verify_share)

    def is_asking(self, tracked: Tracked) -> bool:
        """Say whether media that others write to have still to answer, and begin to ask them."""
        now_s = self.store.now_s()
        if tracked.asked is None:
            tokens = tracked.request.num_tokens
            tracked.asked_until_s = now_s + self.decider.answer_s(tokens)
            nbytes = self.decider.sizes.block_bytes
            asked = [
                self.store.inquire(keys, tracked.asked_until_s, block_bytes=nbytes) for keys in tracked.keys
            ]
            tracked.asked = [each for each in asked if each is not None]
        if now_s >= tracked.asked_until_s:
            for each in tracked.asked:
                each.abandon()
            tracked.asked = []
        return any(not each.done() for each in tracked.asked)

    def promised(self, tracked: Tracked, num_ready: int) -> Promise:
        """Return what a request is promised; asked again soon, the same. Leases are kept with the request."""
        request, now_s = tracked.request, self.store.now_s()
        promise = self._given.get(request.request_id)
        if promise is not None and promise.first == num_ready and now_s < promise.until_s:
            return promise
        tracked.release()
        tiers = self._found(tracked)
        leading = self.decider.decide(tiers, num_ready, request.num_tokens, now_s)
        leading = self._allowed(tracked, leading)
        if not leading.num_blocks:
            self.prober.probe(tracked.keys[0], tiers, self.decider.unheard(tiers[num_ready:], now_s))
        ends_s = min((hit.deadline_s for hit in tracked.hits), default=now_s)
        promise = Promise(num_ready, leading, tiers, (now_s + ends_s) / 2)
        self._given[request.request_id] = promise
        if not leading.num_blocks:
            tracked.release()
        return promise

    def take(self, request_id: str) -> Promise | None:
        """Return what a request was promised, and forget it."""
        return self._given.pop(request_id, None)

    def clear(self) -> None:
        """Forget all promises."""
        self._given.clear()

    def is_async(self, promise: Promise) -> bool:
        """Say whether what was promised is loaded while others compute."""
        loading = self.settings.loading
        if not self.may_wait or loading == "async":
            return True
        is_here = not self.settings.is_shared and all(tier == HOST for tier in promise.loaded_tiers)
        return loading == "auto" and not is_here

    def _found(self, tracked: Tracked) -> list[str | None]:
        """Return where each block is that all ranks have: the slowest of their tiers."""
        ttl_s = self.settings.ttl_s
        tracked.hits = [self.store.lookup(keys, ttl_s=ttl_s) for keys in tracked.keys]
        by_block = list(zip(*(hit.tiers for hit in tracked.hits), strict=True))
        tracked.present = {index for index, tiers in enumerate(by_block) if None not in tiers}
        self.counts.count("blocks_looked_up", len(by_block))
        self.counts.count("blocks_found", len(tracked.present))
        if self.announcer is not None:
            self.announcer.found(tracked)
        order = {tier: number for number, tier in enumerate(self.store.tier_names)}
        return [
            max(tiers, key=lambda tier: order.get(tier, 0)) if index in tracked.present else None
            for index, tiers in enumerate(by_block)
        ]

    def _allowed(self, tracked: Tracked, leading: Leading) -> Leading:
        """Return what the mode leaves of it."""
        if not leading.num_blocks:
            return leading
        nothing, mode = Leading(0, leading.if_computed_s, leading.if_computed_s), Mode(self.settings.mode)
        if mode is Mode.OBSERVE:
            self.counts.count("tokens_observed", leading.num_blocks * tracked.block_tokens)
            return nothing
        if mode is Mode.VERIFY:
            tracked.is_compared = self._verified.chooses()
        return nothing if tracked.is_compared else leading
