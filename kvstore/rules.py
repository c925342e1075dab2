"""Retention at work: which rule holds for which block."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from kvstore.defaults import ttl_ms
from kvstore.record import FOREVER_MS, Record
from kvstore.retention import Lifetime, Retention

TenantOf = Callable[[bytes], str | None]
"""Tells the tenant of a namespace, as far as it is known."""

_MOST_REMEMBERED = 65_536
_NONE: tuple[bytes, ...] = ()


class Limits(NamedTuple):
    """How long a block may live: from a use (``None``: no rule says), and from its first write."""

    soft_ms: int | None = None
    hard_ms: int = FOREVER_MS


class _Under(NamedTuple):
    """The prefixes, shortest first, whose rules hold for a block, and for all that follow it."""

    own: tuple[bytes, ...]
    followers: tuple[bytes, ...]


class Rules:
    """Answers what ``retention`` says. Not thread-safe.

    A prefix rule is about prompts, of which the store only sees keys: who is under one is learnt where whole
    prompts are named, handed on from parent to child, and remembered for some 65,000 blocks.
    """

    def __init__(self, retention: Retention) -> None:
        self._under: OrderedDict[bytes, _Under] = OrderedDict()
        self.replace(retention)

    def replace(self, retention: Retention) -> None:
        """Let ``retention`` hold from now on."""
        self.retention = retention
        self._under.clear()
        tenants = (retention.others, *retention.tenants.values())
        self.is_plain = not retention.prefixes and all(rule.lifetime == Lifetime() for rule in tenants)
        """Whether no rule says how long anything lives."""

    def of_prompt(self, keys: Sequence[bytes], tenant: str | None) -> Limits:
        """Return what holds for the blocks of a prompt, from its first; learns which prefixes it has."""
        prefixes = self.retention.prefixes
        found = tuple(key for key in keys if key in prefixes) if prefixes else _NONE
        if found:
            self._learn(keys, found)
        elif self._under and keys and (known := self._under.get(keys[-1])):
            found = known.followers
        return self._limits(found, tenant)

    def of_block(self, key: bytes, parent: bytes, tenant: str | None) -> Limits:
        """Return what holds for a block of which only its parent is named; remembers it for its children."""
        return self._limits(self._own(key, parent), tenant)

    def survey(self, records: Mapping[bytes, Record], tenant_of: TenantOf) -> Iterator[tuple[Record, Limits]]:
        """Yield what holds for each of all blocks that are there; learns who is under which prefix."""
        followers: dict[bytes, tuple[bytes, ...]] = {}
        own = self._own_of_ancestors(records)
        for key, record in records.items():
            if self.retention.prefixes:
                for before in reversed(list(_not_in(followers, key, records))):
                    followers[before.key] = self._followers(before.key, before.parent, followers)
            under = _Under((*followers.get(key, _NONE), *own.get(key, _NONE)), followers.get(key, _NONE))
            if under.own:
                self._remember(key, under)
            tenant = tenant_of(record.namespace)
            always = self._limits(under.followers, tenant)  # whichever prompt it is used for
            yield record, Limits(always.soft_ms, self._limits(under.own, tenant).hard_ms)

    def _own_of_ancestors(self, records: Mapping[bytes, Record]) -> dict[bytes, tuple[bytes, ...]]:
        """Return the prefixes that begin with a block and end after it."""
        own: dict[bytes, tuple[bytes, ...]] = {}
        for prefix in self.retention.prefixes:
            record = records.get(prefix)
            while record is not None and prefix not in own.get(record.parent, _NONE):
                own[record.parent] = (*own.get(record.parent, _NONE), prefix)
                record = records.get(record.parent)
        return own

    def _followers(
        self, key: bytes, parent: bytes, known: Mapping[bytes, tuple[bytes, ...]]
    ) -> tuple[bytes, ...]:
        """Return the prefixes that whatever follows a block has, by what is known of its parent."""
        prefixes = self.retention.prefixes
        inherited = known.get(parent, (parent,) if parent in prefixes else _NONE)
        return (*inherited, key) if key in prefixes else inherited

    def _own(self, key: bytes, parent: bytes) -> tuple[bytes, ...]:
        if not self.retention.prefixes:
            return _NONE
        known = self._under.get(key)
        if known is None:
            above = self._under.get(parent)
            followers = self._followers(key, parent, {parent: above.followers} if above else {})
            known = _Under(followers, followers)
            if followers:
                self._remember(key, known)
        return known.own

    def _learn(self, keys: Sequence[bytes], found: tuple[bytes, ...]) -> None:
        num_passed = 0
        for key in keys:
            if num_passed < len(found) and key == found[num_passed]:
                num_passed += 1
            self._remember(key, _Under(found, found[:num_passed]))

    def _remember(self, key: bytes, under: _Under) -> None:
        self._under[key] = under
        self._under.move_to_end(key)
        if len(self._under) > _MOST_REMEMBERED:
            self._under.popitem(last=False)

    def _limits(self, prefixes: Sequence[bytes], tenant: str | None) -> Limits:
        """Return the limits of the tenant (``None``: unknown) and of ``prefixes``, the longest one last."""
        lifetimes = [self.retention.prefixes[prefix] for prefix in reversed(prefixes)]
        if tenant is not None:
            lifetimes.append(self.retention.tenant(tenant).lifetime)
        soft_s = next((one.ttl_s for one in lifetimes if one.ttl_s is not None), None)
        hard_ms = min((ttl_ms(one.hard_ttl_s) for one in lifetimes), default=FOREVER_MS)
        return Limits(None if soft_s is None else ttl_ms(soft_s), hard_ms)


def _not_in(known: Mapping[bytes, object], key: bytes, records: Mapping[bytes, Record]) -> Iterator[Record]:
    """Yield the block of ``key`` and those before it, as far as they are there, up to a known one."""
    seen = set[bytes]()
    while (record := records.get(key)) is not None and key not in known and key not in seen:
        seen.add(key)
        yield record
        key = record.parent
