"""What is there: namespaces, blocks one by one, and the prefixes they make up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from heapq import nsmallest

from kvstore.admin.index import OperatedIndex
from kvstore.admin.names import Names
from kvstore.admin.selection import BlockFilter, described
from kvstore.admin.views import BlockView, Page
from kvstore.clock import Clock
from kvstore.errors import RequestError
from kvstore.record import Record

Matches = Callable[[Record], bool]


class Census:
    """Looks at blocks. Thread-safe; no lock is held for long. Only ``names`` may block on the media."""

    def __init__(self, index: OperatedIndex, tiers: Sequence[str], names: Names, clock: Clock) -> None:
        self._index = index
        self._tiers = tuple(tiers)
        self._names = names
        self._clock = clock
        self._named = cache(lambda mask: tuple(self._tiers[bit] for bit in _bits(mask)))

    def page(self, wanted: BlockFilter, after: bytes | None, limit: int) -> Page[BlockView]:
        """Return blocks in the order of their keys; see ``Administration.blocks``."""
        if limit < 1:
            raise RequestError("limit", "must be at least 1")
        keys = self.select(wanted)
        left = keys if after is None else [key for key in keys if key > after]
        shown = nsmallest(limit, left)
        is_more = len(left) > len(shown)
        return Page(tuple(self.views(shown)), shown[-1] if is_more else None, len(keys))

    def views(self, keys: Sequence[bytes]) -> list[BlockView]:
        """Return those of these blocks that are there."""
        now_ms = self._clock.wall_ms()
        return self._index.survey(lambda record: self._view(record, now_ms), keys)

    def select(self, wanted: BlockFilter) -> list[bytes]:
        """Return the keys of the blocks that are meant and there, in no order, each once."""
        matches = self._matcher(wanted)
        keys = None if wanted.keys is None else dict.fromkeys(wanted.keys)
        if wanted.prefix is not None:
            following = self._following(wanted.prefix)
            keys = following if keys is None else {key: None for key in keys if key in following}
        return self._index.survey(lambda record: record.key if matches(record) else None, keys)

    def _following(self, prefix: bytes) -> dict[bytes, None]:
        """Return a block's key and those of all that follow it, each after its parent."""
        children: dict[bytes, list[bytes]] = {}
        for key, parent in self._index.survey(lambda record: (record.key, record.parent)):
            children.setdefault(parent, []).append(key)
        found, unseen = dict[bytes, None](), [prefix]
        while unseen:
            key = unseen.pop()
            if key not in found:  # a medium may tell of parents that go in a circle
                found[key] = None
                unseen += children.get(key, ())
        return found

    def _matcher(self, wanted: BlockFilter) -> Matches:
        """Return what says whether a block is meant and there; it is called under the index's lock."""
        now_ms, index = self._clock.wall_ms(), self._index
        namespaces = described(self._names.known() if wanted.model else {}, wanted)
        tier = -1 if wanted.tier is None else 1 << self.bit(wanted.tier)
        conditions = [*_ages(wanted, now_ms), *self._ownership(wanted, now_ms)]

        def matches(record: Record) -> bool:
            living, unreadable = index.alive_in(record, now_ms)
            if not (living | unreadable) & tier:
                return False
            if namespaces is not None and record.namespace not in namespaces:
                return False
            return all(holds(record) for holds in conditions)

        return matches

    def _ownership(self, wanted: BlockFilter, now_ms: int) -> Iterable[Matches]:
        index, tenant, is_pinned = self._index, wanted.tenant, wanted.is_pinned
        if tenant is not None:
            yield lambda record: index.tenant_of(record.namespace) == tenant
        if is_pinned is not None:
            yield lambda record: bool(index.pinned_until_ms(record.key, now_ms)) == is_pinned

    def bit(self, tier: str) -> int:
        """Return a tier's number. Raises ``RequestError`` for one that is not there."""
        if tier not in self._tiers:
            raise RequestError("tier", f"{tier!r} is not one of {', '.join(self._tiers)}")
        return self._tiers.index(tier)

    def _view(self, record: Record, now_ms: int) -> BlockView | None:
        """Return what there is to tell of a block that is there; under the index's lock."""
        index = self._index
        living, unreadable = index.alive_in(record, now_ms)
        if not living | unreadable:
            return None
        bits = _bits(living | unreadable)
        return BlockView(
            record.key, record.parent, record.namespace, index.tenant_of(record.namespace), record.raw_bytes,
            record.block_tokens, record.first_token, self._named(living), self._named(unreadable),
            self._by_name(index.nbytes_in(record, bits)), record.created_ms, record.last_use_ms,
            {self._tiers[bit]: index.end_in(record, bit) for bit in bits}, index.hard_end(record),
            self._by_name(index.pinned_until_ms(record.key, now_ms)), record.num_holds, record.num_hits,
            record.hit_ms, index.is_quarantined(record.key),
        )  # fmt: skip

    def _by_name(self, by_bit: Mapping[int, int]) -> dict[str, int]:
        return {self._tiers[bit]: value for bit, value in by_bit.items()} if by_bit else {}


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(bit for bit in range(mask.bit_length()) if mask >> bit & 1)


def _ages(wanted: BlockFilter, now_ms: int) -> Iterable[Matches]:
    """Yield the conditions on times. Of a block that a medium tells nothing of, no age is known."""
    for least_s, most_s, time_of in (
        (wanted.min_age_s, wanted.max_age_s, lambda record: record.created_ms),
        (wanted.min_idle_s, wanted.max_idle_s, lambda record: record.last_use_ms),
    ):
        if least_s is not None or most_s is not None:
            earliest_ms = 1 if most_s is None else max(1, now_ms - most_s * 1000)
            latest_ms = now_ms if least_s is None else now_ms - least_s * 1000
            yield _between(earliest_ms, latest_ms, time_of)


def _between(earliest_ms: float, latest_ms: float, time_of: Callable[[Record], int]) -> Matches:
    return lambda record: earliest_ms <= time_of(record) <= latest_ms
