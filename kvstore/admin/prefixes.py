"""The prefixes that the blocks make up: the largest, the hottest, the latest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import nlargest
from typing import Literal, NamedTuple

from kvstore.admin.index import OperatedIndex
from kvstore.admin.views import PrefixView
from kvstore.clock import Clock
from kvstore.record import Record

Order = Literal["bytes", "hits", "recent"]


class _Node(NamedTuple):
    """A block as one of a prompt's; ``tiers`` is a mask."""

    key: bytes
    parent: bytes
    namespace: bytes
    tenant: str | None
    nbytes: int
    num_tokens: int
    num_hits: int
    hit_ms: int
    used_ms: int
    tiers: int


def prefixes_of(
    index: OperatedIndex, tiers: Sequence[str], clock: Clock, by: Order, limit: int, tenant: str | None
) -> list[PrefixView]:
    """Return the first ``limit`` prefixes in an order; see ``Administration.prefixes``."""
    now_ms = clock.wall_ms()

    def look(record: Record) -> _Node | None:
        living, _ = index.alive_in(record, now_ms)
        owner = index.tenant_of(record.namespace)
        if not living or tenant not in {None, owner}:
            return None
        return _Node(
            record.key, record.parent, record.namespace, owner, record.raw_bytes, record.block_tokens,
            record.num_hits, record.hit_ms, record.last_use_ms, living,
        )  # fmt: skip

    nodes = {node.key: node for node in index.survey(look)}
    ends = _hit_ends(nodes) if by == "hits" else _leaves(nodes)
    ranks: dict[Order, Callable[[_Node], int]] = {
        "bytes": _Sizes(nodes).of,
        "hits": lambda node: node.num_hits,
        "recent": lambda node: node.used_ms,
    }
    rank = ranks[by]
    chosen = nlargest(limit, ends, key=lambda node: (rank(node), node.key))
    return [_view(node, nodes, tiers) for node in chosen]


def _leaves(nodes: Mapping[bytes, _Node]) -> Iterator[_Node]:
    """Yield the blocks that nothing follows."""
    parents = {node.parent for node in nodes.values()}
    return (node for node in nodes.values() if node.key not in parents)


def _hit_ends(nodes: Mapping[bytes, _Node]) -> Iterator[_Node]:
    """Yield the blocks that were hit, and more often than each that follows them."""
    most = Counter[bytes]()
    for node in nodes.values():
        most[node.parent] = max(most[node.parent], node.num_hits)
    return (node for node in nodes.values() if node.num_hits > most[node.key])


class _Sizes:
    """Bytes of whole prefixes, each block's counted on from that of its parent."""

    def __init__(self, nodes: Mapping[bytes, _Node]) -> None:
        self._nodes = nodes
        self._known: dict[bytes, int] = {}

    def of(self, node: _Node) -> int:
        """Return the raw bytes of the prefix that ends with a block."""
        path = list(_chain(node, self._nodes, self._known))
        nbytes = self._known.get(path[-1].parent, 0) if path else 0
        for before in reversed(path):
            nbytes += before.nbytes
            self._known[before.key] = nbytes
        return self._known[node.key]


def _chain(node: _Node, nodes: Mapping[bytes, _Node], stop: Mapping[bytes, object]) -> Iterator[_Node]:
    """Yield a block and those before it that are there, up to one of ``stop``."""
    seen = set[bytes]()
    last: _Node | None = node
    while last is not None and last.key not in seen and last.key not in stop:
        seen.add(last.key)  # a medium may tell of parents that go in a circle
        yield last
        last = nodes.get(last.parent)


def _view(node: _Node, nodes: Mapping[bytes, _Node], tiers: Sequence[str]) -> PrefixView:
    chain = list(_chain(node, nodes, {}))
    num_blocks = {
        name: num for bit, name in enumerate(tiers) if (num := sum(each.tiers >> bit & 1 for each in chain))
    }
    return PrefixView(
        node.key, node.namespace, node.tenant, len(chain), sum(each.num_tokens for each in chain),
        sum(each.nbytes for each in chain), node.num_hits, node.hit_ms, node.used_ms, num_blocks,
    )  # fmt: skip
