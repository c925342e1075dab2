"""Where a block lies, as a client is told."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.admin.selection import BlockFilter
from kvstore.arena import Slot
from kvstore.leases import Hit
from kvstore.remote.wire import NOWHERE, Place
from kvstore.store import TieredStore


def place_of(tier: int, nbytes: int, slot: Slot | None, known_checksum: int | None) -> Place:
    """Return the place of a block; without a slot, slab or checksum its bytes cannot be mapped."""
    slab = None if slot is None else slot.slab
    if slot is None or slab is None or slab.memory.descriptor < 0 or known_checksum is None:
        return Place(tier, 0, 0, nbytes, 0, 0)
    generation = slab.memory.generations[slot.offset // slab.stride_bytes]
    return Place(tier, slab.number, slot.offset, nbytes, generation, known_checksum)


def places_of(store: TieredStore, hit: Hit) -> list[Place]:
    """Return where each block of a hit lies."""
    tier_numbers = {name: number for number, name in enumerate(store.tier_names)}
    slots = iter(zip(hit.records, store.places(hit), strict=True))
    places = []
    for tier in hit.tiers:
        if tier is None:
            places.append(NOWHERE)
            continue
        record, slot = next(slots)
        places.append(place_of(tier_numbers[tier], record.raw_bytes, slot, record.checksum))
    return places


def look_up_mappable(
    store: TieredStore, keys: Sequence[bytes], lease_s: float | None, ttl_s: float | None, owner: bytes
) -> Hit:
    """Look blocks up for a tenant's client, as ``TieredStore.lookup`` does.

    What came to memory before anybody knew that it is the tenant's, as by an import, lies where the client
    may not map it: it goes from there first.
    """
    hit = store.lookup(keys, lease_s, ttl_s)
    slots = zip(hit.records, store.places(hit), strict=True)
    strange = tuple(record.key for record, slot in slots if slot and slot.slab and slot.slab.owner != owner)
    if not strange:
        return hit
    hit.release()
    store.admin.evict(BlockFilter(keys=strange), [store.tier_names[1]])
    return store.lookup(keys, lease_s, ttl_s)
