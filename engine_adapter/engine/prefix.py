"""What a sequence shares with others: blocks of the pool, and through the store all other tiers."""

from __future__ import annotations

from collections.abc import Container
from contextlib import suppress
from dataclasses import replace

from backends.device import DevicePool
from engine_adapter.engine.namespaces import Namespaces
from engine_adapter.engine.ownership import Loads, Owner, Ownership
from engine_adapter.engine.request import CacheUse, Request
from engine_adapter.engine.sequence import Sequence
from engine_adapter.engine.storing import Storable
from engine_adapter.engine.traffic import Traffic
from kvstore.errors import StoreClosedError
from kvstore.keys import chain_keys
from kvstore.leases import Hit
from kvstore.loading import LoadedBlock
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from kvstore.tier import DEVICE


class PrefixCache:
    """Gives sequences their blocks, fills them from the cache, and publishes what they compute.

    The block that holds the last token of a prefill is always private: that token is computed for
    its logits, and a published block is never written again. Used by the engine's thread alone.
    """

    def __init__(
        self, pool: DevicePool, store: TieredStore, namespaces: Namespaces, lease_s: float, loads: Loads
    ) -> None:
        self.pool = pool
        self.num_taken_over = 0
        self._namespaces = namespaces
        self.store = store
        self._lease_s = lease_s
        self._loads = loads
        self._step = pool.shape.block_tokens
        self.traffic = Traffic(pool, store, loads.costs, loads.clock)
        namespaces.register(store)

    def change_namespace(self, namespace: Namespace) -> None:
        """Let the model have ``namespace`` from now on; what was published before is let go."""
        self.clear()
        self._namespaces = replace(self._namespaces, base=namespace)
        self._namespaces.register(self.store)

    def namespace_of(self, request: Request) -> Namespace:
        """Return the namespace of a request's blocks; from any thread."""
        return self._namespaces.of(request.salt, request.lora, request.tenant)

    def attach(self, sequence: Sequence, num_spare: int) -> bool:
        """Give ``sequence`` the blocks of its prefill, sharing published ones.

        ``False``, with nothing changed, when that would leave fewer than ``num_spare`` available.
        """
        keys = self._prefill_keys(sequence)
        ended = self.store.ended(keys)
        self.pool.discard(ended)
        num_shareable = (len(sequence.tokens) - 1) // self._step
        shared = self._acquire(keys[:num_shareable] if sequence.cache.reads else [], ended)
        num_missing = self.blocks_for(len(sequence.tokens)) - len(shared)
        missing = None
        if self.can_allocate(num_missing + num_spare, waits=False):
            missing = self.pool.allocate(num_missing, after=_last_of_head(shared))
        if missing is None:
            self.pool.release(shared.values(), is_used=False)
            return False
        fresh = iter(missing)
        sequence.restart()
        sequence.keys = keys
        sequence.blocks = [
            shared[index] if index in shared else next(fresh) for index in range(len(shared) + len(missing))
        ]
        sequence.ownership = Ownership(len(keys), self._loads if sequence.cache.reads else None)
        for index in shared:
            sequence.ownership.make_ready(index, DEVICE)
        return True

    def detach(self, sequence: Sequence) -> None:
        """Take back all that ``sequence`` holds: loads, lease and blocks."""
        sequence.ownership.close()
        self.num_taken_over += sequence.ownership.num_taken_over
        sequence.num_failed += sequence.ownership.num_taken_over
        sequence.ownership = Ownership()
        self.pool.release(reversed(sequence.blocks))
        sequence.blocks = []

    def ask_ahead(self, sequence: Sequence) -> None:
        """Begin to ask media that others write to as well which of its blocks they hold; never blocks."""
        if sequence.cache.reads:
            keys = self._prefill_keys(sequence)
            deadline_s = self._loads.clock.monotonic_s() + self._loads.deadline_s
            with suppress(StoreClosedError):
                sequence.inquiry = self.store.inquire(
                    keys, deadline_s, self._loads.on_done, self.pool.shape.block_bytes
                )

    def look_up(self, sequence: Sequence) -> Hit | None:
        """Look up what the pool does not have; the lease is the caller's, ``None`` without one.

        What the pool has by now is shared.
        """
        if not sequence.cache.reads or not sequence.keys:
            return None
        hit = self.store.lookup(sequence.keys, self._lease_s, sequence.request.ttl_s)
        try:
            for index, tier in enumerate(hit.tiers):
                is_ahead = index * self._step >= sequence.num_computed
                if tier == DEVICE and is_ahead and sequence.ownership.owner(index) is not Owner.READY:
                    self._share(sequence, index)
        except BaseException:
            hit.release()
            raise
        return hit

    def is_lease_ending(self, sequence: Sequence) -> bool:
        """Say whether the lease on what is to be loaded is nearly over."""
        ends_s = sequence.ownership.lease_ends_s
        return ends_s is not None and ends_s - self._loads.clock.monotonic_s() < self._lease_s / 6

    def collect(self, sequence: Sequence, now_s: float) -> bool:
        """Take over the loads that have arrived; says whether any load has reported."""
        num_loading = sequence.ownership.num_loading
        for index, loaded in sequence.ownership.arrivals(now_s):
            is_missing = False
            try:
                is_missing = self._is_missing(sequence, index, loaded)
            finally:
                if not is_missing:
                    loaded.release()
            if is_missing:
                self._take_in(sequence, index, loaded)
        return sequence.ownership.num_loading != num_loading

    def advance(self, sequence: Sequence) -> None:
        """Move the computing position over blocks that are ready, or were published meanwhile."""
        last = sequence.num_prefill - 1
        while sequence.num_computed % self._step == 0 and sequence.num_computed < last:
            index = sequence.num_computed // self._step
            if sequence.ownership.owner(index) is not Owner.READY and not self._share(sequence, index):
                return
            position = min(sequence.num_computed + self._step, last)
            sequence.move_to(position, sequence.ownership.tier(index))

    def computable_end(self, sequence: Sequence, limit: int, elsewhere: Container[bytes]) -> int:
        """Return how far computing may go from its position, at most to ``limit``.

        It stops before blocks that are ready or loading, and before those of which another
        sequence computes the keys (``elsewhere``) in this step.
        """
        end = sequence.num_computed
        while end < limit:
            index, offset = divmod(end, self._step)
            if not offset and not self._is_to_compute(sequence, index, elsewhere):
                break
            end = (index + 1) * self._step
        return min(end, limit)

    def begin_computing(self, sequence: Sequence, start: int, end: int) -> None:
        """Give up loads of the blocks that positions ``start`` to ``end`` touch: they are computed now."""
        sequence.ownership.begin_computing(start // self._step, self.blocks_for(end))

    def publish(self, sequence: Sequence, start: int) -> None:
        """Publish the blocks that computing from ``start`` to its position has filled; stored soon."""
        if not sequence.cache.writes:
            return
        num_full = sequence.num_computed // self._step
        sequence.extend_keys(num_full, self._step)
        for index in range(start // self._step, num_full):
            self._publish(sequence, index)
            self.traffic.stores.add(
                Storable(
                    sequence.namespace,
                    sequence.keys[index],
                    sequence.parent_key(index),
                    index * self._step,
                    sequence.request.ttl_s,
                )
            )

    def clear(self) -> None:
        """Drop every block of the pool that no sequence uses, once it is stored."""
        self.traffic.store_all()
        self.pool.clear()

    def let_go_of_ended(self) -> None:
        """Drop blocks of the pool whose time is over, but for those that sequences still use."""
        if ended := self.store.over_on_device():
            self.pool.discard(ended)

    def grow(self, sequence: Sequence) -> bool:
        """Make sure that the next token has a block; ``False`` when none is available."""
        if sequence.num_computed < len(sequence.blocks) * self._step:
            return True
        blocks = self.pool.allocate(1, after=sequence.blocks[-1]) if self.can_allocate(1) else None
        sequence.blocks += blocks or []
        return blocks is not None

    def blocks_for(self, num_tokens: int) -> int:
        """Return the number of blocks that ``num_tokens`` take."""
        return -(-num_tokens // self._step)

    def keys_between(self, sequence: Sequence, start: int, end: int) -> list[bytes]:
        """Return the keys of the whole blocks that positions ``start`` to ``end`` touch."""
        return sequence.keys[start // self._step : self.blocks_for(end)]

    def wanted_keys(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of the blocks that a sequence which waits is going to look up."""
        return self._prefill_keys(sequence) if sequence.cache.reads else []

    def computed_keys(self, sequence: Sequence) -> list[bytes]:
        """Return the keys of the whole blocks that are there thanks to a sequence, or were for it."""
        return sequence.keys[: sequence.num_computed // self._step]

    def can_allocate(self, num: int, *, waits: bool = True) -> bool:
        """Say whether the pool has ``num`` blocks, storing those that wait for it if that frees them.

        Unless it ``waits``, those whose copies take longer are not counted yet.
        """
        if self.pool.num_available < num:
            self.traffic.stores.make_available(num, waits=waits)
        return self.pool.num_available >= num

    def _is_missing(self, sequence: Sequence, index: int, loaded: LoadedBlock) -> bool:
        """Say whether an arrived block is to be taken in: it may be unfit, or the pool has it by now."""
        if not self._is_usable(sequence, index, loaded):
            sequence.ownership.refuse(index)
            return False
        return not self._share(sequence, index)

    def _is_usable(self, sequence: Sequence, index: int, loaded: LoadedBlock) -> bool:
        """Say whether a block is of our size, and was neither ended nor quarantined since it arrived."""
        is_of_our_size = len(loaded.data) == self.pool.shape.block_bytes
        return is_of_our_size and not self.store.ended(sequence.keys[index : index + 1])

    def _take_in(self, sequence: Sequence, index: int, loaded: LoadedBlock) -> None:
        tier = loaded.tier
        self.traffic.loads.begin(sequence.blocks[index], loaded)
        sequence.ownership.make_ready(index, tier)
        if sequence.cache.writes and not self._holds_last_token(sequence, index):
            self._publish(sequence, index)

    def _prefill_keys(self, sequence: Sequence) -> list[bytes]:
        if sequence.cache is CacheUse.OFF:
            return []
        sequence.namespace = self.namespace_of(sequence.request)
        return chain_keys(sequence.namespace.digest, sequence.tokens, self._step)

    def _acquire(self, keys: list[bytes], ended: Container[bytes]) -> dict[int, int]:
        found = ((index, self.pool.acquire(key)) for index, key in enumerate(keys) if key not in ended)
        return {index: block for index, block in found if block is not None}

    def _acquire_living(self, key: bytes) -> int | None:
        """Return the published block of ``key`` unless its time is over; one in use cannot be discarded."""
        return None if self.store.ended((key,)) else self.pool.acquire(key)

    def _share(self, sequence: Sequence, index: int) -> bool:
        """Put the published block with this key, if there is one, in place of the sequence's own."""
        if not sequence.cache.reads or index >= len(sequence.keys):
            return False
        published = self._acquire_living(sequence.keys[index])
        if published is None:
            return False
        own = sequence.blocks[index]
        if self._holds_last_token(sequence, index):
            self.pool.copy_block(published, own)
            self.pool.release([published])
        else:
            sequence.blocks[index] = published
            self.pool.release([own])
        sequence.ownership.make_ready(index, DEVICE)
        return True

    def _publish(self, sequence: Sequence, index: int) -> None:
        """Publish a full block; when another one has its key already, use that one."""
        key, own = sequence.keys[index], sequence.blocks[index]
        is_new = self.pool.publish(own, key, sequence.parent_key(index), sequence.namespace)
        published = self._acquire_living(key) if sequence.cache.reads and not is_new else None
        if published is not None:
            sequence.blocks[index] = published
            self.pool.release([own])

    def _is_to_compute(self, sequence: Sequence, index: int, elsewhere: Container[bytes]) -> bool:
        if sequence.ownership.owner(index) is not Owner.COMPUTE:
            return False
        is_whole = index < len(sequence.keys)
        return not (is_whole and sequence.cache.reads and sequence.keys[index] in elsewhere)

    def _holds_last_token(self, sequence: Sequence, index: int) -> bool:
        return index == (sequence.num_prefill - 1) // self._step


def _last_of_head(shared: dict[int, int]) -> int | None:
    """Return the last block of the unbroken head, behind which the missing ones should lie."""
    index = next((index for index in range(len(shared)) if index not in shared), len(shared))
    return shared[index - 1] if index else None
