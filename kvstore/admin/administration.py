"""All that an operator does with the blocks of a store, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

from kvstore.admin.accounts import namespaces_of
from kvstore.admin.census import Census
from kvstore.admin.copy_reader import CopyReader
from kvstore.admin.exporting import Exporter
from kvstore.admin.importing import Importer
from kvstore.admin.index import OperatedIndex
from kvstore.admin.names import Names
from kvstore.admin.operations import Operations, absent
from kvstore.admin.outcome import Exported, Imported, Outcome, Retimed, Verification
from kvstore.admin.placement import OperatedPlacement
from kvstore.admin.planning import Errand
from kvstore.admin.prefixes import Order, prefixes_of
from kvstore.admin.progress import Progress
from kvstore.admin.selection import BlockFilter
from kvstore.admin.verifying import Verifier
from kvstore.admin.views import BlockView, NamespaceView, Page, PrefixView
from kvstore.clock import Clock
from kvstore.defaults import checked_ttl_ms
from kvstore.errors import RequestError
from kvstore.manifests import Manifests
from kvstore.storing import Storing
from kvstore.tier import Tier


class Administration:
    """A store's blocks in its operator's hands. Thread-safe; what moves bytes blocks, on the caller's thread.

    What takes long takes a ``Progress``: it counts blocks, and can be cancelled between any two of them. A
    ``dry_run`` changes nothing and says what would happen; in a store at rest the very same happens then.
    Raises ``RequestError`` for tiers that are not there and for filters that cannot be.
    """

    def __init__(
        self, tiers: Sequence[Tier], names: Sequence[str], index: OperatedIndex, placement: OperatedPlacement,
        storing: Storing, manifests: Manifests, clock: Clock,
    ) -> None:  # fmt: skip
        self._tiers = tuple(tiers)
        self._tier_names = tuple(names)
        self._index = index
        self._placement = placement
        self._storing = storing
        self._manifests = manifests
        self._clock = clock
        self._names = Names(manifests, clock)
        self._census = Census(index, names, self._names, clock)
        self._operations = Operations(tiers, index, placement, storing, self._census, clock)

    def namespaces(self, tenant: str | None = None) -> list[NamespaceView]:
        """Return what there is of each namespace (of a tenant), by digest; may read manifests, for 2 s."""
        return namespaces_of(self._index, self._names, self._tier_names, tenant)

    def blocks(
        self, wanted: BlockFilter | None = None, after: bytes | None = None, limit: int = 100
    ) -> Page[BlockView]:
        """Return blocks in the order of their keys: up to ``limit`` that come after the key ``after``.

        A block that is there all the while is on exactly one page, whatever comes and goes meanwhile.
        """
        return self._census.page(wanted or BlockFilter(), after, limit)

    def block(self, key: bytes) -> BlockView | None:
        """Return what there is to tell of a block; ``None``: it is not there."""
        return next(iter(self._census.views([key])), None)

    def prefixes(self, by: Order = "bytes", limit: int = 20, tenant: str | None = None) -> list[PrefixView]:
        """Return the largest, hottest or latest prefixes.

        By ``bytes`` and ``recent``: those that end with a block that none follows. By ``hits``: those that
        were found more often than anything that goes on from them, so that a system prompt stands before the
        conversations that begin with it.
        """
        if limit < 1:
            raise RequestError("limit", "must be at least 1")
        return prefixes_of(self._index, self._tier_names, self._clock, by, limit, tenant)

    def evict(
        self, wanted: BlockFilter, tiers: Sequence[str] | None = None, *, dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Outcome:  # fmt: skip
        """Remove blocks from ``tiers``, or from all that store bytes; those in use or pinned stay."""
        chosen = self._tiers if tiers is None else [self._tier("tiers", name) for name in tiers]
        return self._operations.evict(wanted, chosen, dry_run=dry_run, progress=progress or Progress())

    def drop_namespace(
        self, digest: bytes, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Outcome:
        """Remove all that there is of a namespace; what is in use or pinned stays."""
        return self.evict(BlockFilter(namespace=digest), dry_run=dry_run, progress=progress)

    def move(
        self, wanted: BlockFilter, source: str | None, target: str, *, dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Outcome:  # fmt: skip
        """Bring blocks from one tier to another; ``source`` ``None``: each from the fastest that has it.

        A block is read, verified and written before it goes from where it was. Ends and pins go with it.
        Blocks that make way for others are chosen as ever, but never those that move, nor what they follow.
        What is there already only goes from ``source``.
        """
        errand = Errand(self._tier("source", source) if source else None, self._tier("target", target), True)
        if errand.source is errand.target:
            raise RequestError("target", f"blocks of {target!r} are there already: name another tier")
        return self._operations.bring(wanted, errand, dry_run=dry_run, progress=progress or Progress())

    def warm(
        self, wanted: BlockFilter, target: str | None = None, *, dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Outcome:  # fmt: skip
        """Bring blocks into ``target`` (the fastest that stores bytes) as well; they stay where they are."""
        names = [tier.name for tier in self._tiers]
        into = self._tier("target", target or next(iter(names), ""))
        errand = Errand(None, into, False)
        return self._operations.bring(wanted, errand, dry_run=dry_run, progress=progress or Progress())

    def drain(
        self, tier: str, target: str | None = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> Outcome:
        """Let a tier take no new blocks from now on; with a ``target`` its blocks move there.

        What stays (in use, no room, or no target) is still found and read, until it ends, is evicted or
        moved; ``drain`` again moves the rest.
        """
        drained = self._tier("tier", tier)
        if not dry_run:
            drained.is_draining = True
        wanted = BlockFilter(tier=tier)
        if target is not None:
            return self.move(wanted, tier, target, dry_run=dry_run, progress=progress)
        return Outcome(len(self._census.select(wanted)))

    def undrain(self, tier: str) -> None:
        """Let a tier take blocks again; nothing happens when it did not drain."""
        self._tier("tier", tier).is_draining = False

    @property
    def draining(self) -> frozenset[str]:
        """The names of the tiers that take no new blocks."""
        return frozenset(tier.name for tier in self._tiers if tier.is_draining)

    def verify(self, wanted: BlockFilter, *, progress: Progress | None = None) -> Verification:
        """Read copies of blocks, in each tier that stores bytes, and compare them with their checksums.

        What is bad goes from there, in use or not, as after a load.
        """
        verifier = Verifier(self._tiers, self._index, CopyReader(self._placement), self._clock)
        return verifier.verify(sorted(self._census.select(wanted)), progress or Progress())

    def set_ttl(
        self, wanted: BlockFilter, ttl_s: float | None = None, hard_ttl_s: float | None = None
    ) -> Retimed:
        """Let blocks end ``ttl_s`` from now if nobody uses them, and ``hard_ttl_s`` after their first write.

        A soft end may come sooner by that, but not before a pin's; a hard one is never put off. Raises
        ``RequestError`` for a time that is not above 0 or beyond a century, or for none.
        """
        if ttl_s is None and hard_ttl_s is None:
            raise RequestError("ttl_s", "say how long: ttl_s, hard_ttl_s, or both")
        now_ms = self._clock.wall_ms()
        soft_ms = None if ttl_s is None else now_ms + checked_ttl_ms(ttl_s)
        hard_ttl_ms = None if hard_ttl_s is None else checked_ttl_ms(hard_ttl_s, "hard_ttl_s")
        records = self._index.set_ends(self._census.select(wanted), now_ms, soft_ms, hard_ttl_ms)
        self._placement.rewrite_headers(records, insist=True)
        there = {record.key for record in records}
        return Retimed(len(there), tuple(stay.key for stay in absent(wanted, there)))

    def export(self, wanted: BlockFilter, file: BinaryIO, *, progress: Progress | None = None) -> Exported:
        """Write blocks to a file in the format of safetensors, one by one, with the memory of one.

        The file must be able to seek and is written from its beginning; after an error, or when called off,
        it is empty. What goes before its turn, or cannot be read, is left out and told. Raises
        ``RequestError`` for more blocks than a file holds, or none; ``OSError`` when it cannot be written.
        """
        keys = self._operations.root_first(self._census.select(wanted))
        copies = CopyReader(self._placement)
        exporter = Exporter(self._tiers, self._index, copies, self._names, self._clock)
        return exporter.export(keys, absent(wanted, keys), file, progress or Progress())

    def import_(
        self, file: BinaryIO, *, ttl_s: float | None = None, progress: Progress | None = None
    ) -> Imported:
        """Store the blocks of an exported file, which must be able to seek; all of it is verified before.

        First write and hard end go with a block; its soft end counts from now, as for any that is stored.
        Others make way as ever. A key names what was computed, and nobody can tell from its bytes whether it
        was: import files from those alone whom you would let store. Raises ``RequestError`` for a file of
        another version, or that is not what was exported; nothing of it is stored then.
        """
        ttl_ms = None if ttl_s is None else checked_ttl_ms(ttl_s)
        importer = Importer(self._index, self._placement, self._storing, self._manifests, self._clock)
        return importer.import_(file, ttl_ms, progress or Progress())

    def _tier(self, param: str, name: str) -> Tier:
        for tier in self._tiers:
            if tier.name == name:
                return tier
        raise RequestError(param, f"{name!r} is not one of {', '.join(self._tier_names[1:])}")
