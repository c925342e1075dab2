"""What there is of each namespace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvstore.admin.index import OperatedIndex
from kvstore.admin.names import Names
from kvstore.admin.views import NamespaceView
from kvstore.namespace import Namespace
from kvstore.record import Record
from kvstore.tier import DEVICE_BIT


@dataclass(slots=True)
class _Account:
    """The sums of one namespace, by the tier's number."""

    num_blocks: Counter[int] = field(default_factory=Counter)
    nbytes: Counter[int] = field(default_factory=Counter)
    used_ms: int = 0
    hit_ms: int = 0
    num_hits: int = 0

    def add(self, record: Record, nbytes: Mapping[int, int]) -> None:
        """Count one block, with what it occupies by tier."""
        for bit, occupied_bytes in nbytes.items():
            self.num_blocks[bit] += 1
            self.nbytes[bit] += occupied_bytes
        self.num_blocks[DEVICE_BIT] += record.charged >> DEVICE_BIT & 1
        self.used_ms = max(self.used_ms, record.last_use_ms)
        self.hit_ms = max(self.hit_ms, record.hit_ms)
        self.num_hits += record.num_hits


def namespaces_of(
    index: OperatedIndex, names: Names, tiers: Sequence[str], tenant: str | None
) -> list[NamespaceView]:
    """Return what there is of each namespace that has blocks, in the order of their digests."""
    accounts: dict[bytes, tuple[_Account, str | None]] = {}
    bits = range(len(tiers))

    def count(record: Record) -> None:
        nbytes = index.nbytes_in(record, bits)
        if nbytes or record.charged >> DEVICE_BIT & 1:
            space = record.namespace
            if space not in accounts:
                accounts[space] = _Account(), index.tenant_of(space)
            accounts[space][0].add(record, nbytes)

    index.survey(count)
    known = names.of(accounts)
    return list(_views(accounts, known, tiers, tenant))


def _views(
    accounts: Mapping[bytes, tuple[_Account, str | None]],
    known: Mapping[bytes, Namespace],
    tiers: Sequence[str],
    tenant: str | None,
) -> Iterator[NamespaceView]:
    for digest, (account, owner) in sorted(accounts.items()):
        if tenant is not None and owner != tenant:
            continue
        yield NamespaceView(
            digest, known.get(digest), owner,
            {tiers[bit]: num for bit, num in sorted(account.num_blocks.items()) if num},
            {tiers[bit]: nbytes for bit, nbytes in sorted(account.nbytes.items())},
            account.used_ms, account.hit_ms, account.num_hits,
        )  # fmt: skip
