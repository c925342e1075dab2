"""Quotas in one tier: whose blocks count where, and which of them make way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kvstore.errors import InvariantError
from kvstore.retention import Retention
from kvstore.seams import EvictionPolicy
from kvstore.statistics import GroupUsage
from kvstore.tenants import Tenants

Scope = Literal["tenant", "namespace"]


@dataclass(slots=True, eq=False)
class Group:
    """The blocks of one tenant or namespace in a tier, which has a quota for them.

    ``name`` is the digest of the tenant or of the namespace, in hex. ``used_bytes`` is what counts: held,
    arriving, and leaving until it has left. ``policy`` orders the blocks that are held and not pinned.
    """

    scope: Scope
    name: str
    quota_bytes: int
    policy: EvictionPolicy
    used_bytes: int = 0
    num_members: int = 0

    def usage(self) -> GroupUsage:
        """Return what it uses of its quota."""
        return GroupUsage(self.scope, self.name, self.quota_bytes, self.used_bytes, self.num_members)

    @property
    def is_over(self) -> bool:
        """Whether it has more than its quota, which was lowered."""
        return self.used_bytes > self.quota_bytes


Groups = tuple[Group, ...]


class Quotas:
    """The groups of one tier, and which blocks count in them. Not thread-safe.

    Groups are a function of a block's namespace. So a chain counts as a whole or not at all, and a group's
    own order is leaf-first for the tier as well. A group exists while it has blocks.
    """

    def __init__(
        self,
        tier: str = "",
        make_policy: Callable[[], EvictionPolicy] | None = None,
        tenants: Tenants | None = None,
    ) -> None:
        self.members: dict[bytes, Groups] = {}
        self._tier = tier
        self._make_policy = make_policy
        self._tenants = tenants or Tenants()
        self._groups: dict[tuple[Scope, str], Group] = {}
        self._retention = Retention()
        self._namespaces: Mapping[bytes, int] = {}
        self.has_rules = False
        self._over: list[Group] = []

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def set_rules(self, retention: Retention) -> bool:
        """Hold to other rules from now on; says whether there are or were any for this tier."""
        had_rules = self.has_rules
        tier, rules = self._tier, [retention.others, *retention.tenants.values()]
        self._retention = retention
        self._namespaces = {
            digest: quotas[tier] for digest, quotas in retention.namespaces.items() if tier in quotas
        }
        self.has_rules = bool(self._namespaces) or any(tier in rule.quotas for rule in rules)
        for group in self:
            quota_bytes = self._quota(group.scope, group.name)
            group.quota_bytes = group.quota_bytes if quota_bytes is None else quota_bytes
        return had_rules or self.has_rules

    def of(self, namespace: bytes) -> Groups:
        """Return the groups in which blocks of a namespace count, the narrower first."""
        if not self.has_rules:
            return ()
        groups: Groups = ()
        quota_bytes = self._namespaces.get(namespace)
        if quota_bytes is not None:
            groups = (self._group("namespace", namespace.hex(), quota_bytes),)
        tenant = self._tenants.get(namespace)
        quota_bytes = None if tenant is None else self._retention.tenant(tenant).quotas.get(self._tier)
        if tenant is None or quota_bytes is None:
            return groups
        return (*groups, self._group("tenant", tenant, quota_bytes))

    def join(self, key: bytes, groups: Groups) -> None:
        """Let a block count in ``groups`` from now on; their bytes are the caller's to change."""
        self.members[key] = groups
        for group in groups:
            self._meet(group)

    def leave(self, key: bytes) -> Groups:
        """Let a block count no more; returns the groups it counted in."""
        groups = self.members.pop(key, ())
        for group in groups:
            self._part(group)
        return groups

    def over(self) -> list[Group]:
        """Return the groups that have more than their quota."""
        if self._over:
            self._over = [group for group in self._over if group.is_over]
        return self._over

    def swap(self, key: bytes, groups: Groups) -> tuple[Groups, Groups]:
        """Let a block count in ``groups`` instead; returns those that lost and those that gained it.

        Their bytes and orders are the caller's to change.
        """
        before = self.members.pop(key, ())
        lost = tuple(group for group in before if group not in groups)
        gained = tuple(group for group in groups if group not in before)
        for group in lost:
            self._part(group)
        if groups:
            self.members[key] = groups
        for group in gained:
            self._meet(group)
        return lost, gained

    def regrouped(self) -> None:
        """All blocks are in their groups again."""
        self._over = [group for group in self if group.is_over]

    def usage(self, most: int) -> tuple[GroupUsage, ...]:
        """Return what groups use: whom the rules name, and of others ``most``, the largest first."""
        named: dict[tuple[Scope, str], int] = {
            ("namespace", digest.hex()): quota for digest, quota in self._namespaces.items()
        }
        for tenant, rule in self._retention.tenants.items():
            if self._tier in rule.quotas:
                named["tenant", tenant] = rule.quotas[self._tier]
        others = [group for group in self if (group.scope, group.name) not in named]
        others.sort(key=lambda group: (-group.used_bytes, group.name))
        told = [
            self._groups.get((scope, name)) or GroupUsage(scope, name, quota, 0, 0)
            for (scope, name), quota in named.items()
        ]
        return tuple(
            group if isinstance(group, GroupUsage) else group.usage() for group in (*told, *others[:most])
        )

    def check(self, counted: Callable[[bytes, Group], int], ordered: Callable[[bytes], bool]) -> None:
        """Raise ``InvariantError`` unless groups add up.

        ``counted`` is what a block counts in a group; ``ordered`` says which are held and not pinned.
        """
        members: dict[Group, list[bytes]] = {}
        for key, groups in self.members.items():
            for group in groups:
                members.setdefault(group, []).append(key)
        if members.keys() != set(self):
            raise InvariantError("a group without blocks, or blocks without their group")
        for group, keys in members.items():
            if sum(counted(key, group) for key in keys) != group.used_bytes:
                raise InvariantError("the bytes of a group differ from the sum kept")
            if group.is_over and group not in self._over:
                raise InvariantError("a group has more than its quota, and it was not lowered")
            _check_order(group, keys, ordered)

    def _quota(self, scope: Scope, name: str) -> int | None:
        if scope == "namespace":
            return self._namespaces.get(bytes.fromhex(name))
        return self._retention.tenant(name).quotas.get(self._tier)

    def _group(self, scope: Scope, name: str, quota_bytes: int) -> Group:
        """Return the group of this name; a new one is known once it has a block."""
        group = self._groups.get((scope, name))
        if group is None:
            if self._make_policy is None:
                raise InvariantError(f"tier {self._tier} cannot have quotas")
            group = Group(scope, name, quota_bytes, self._make_policy())
        return group

    def _meet(self, group: Group) -> None:
        group.num_members += 1
        self._groups[group.scope, group.name] = group

    def _part(self, group: Group) -> None:
        group.num_members -= 1
        if not group.num_members:
            del self._groups[group.scope, group.name]


def _check_order(group: Group, keys: list[bytes], ordered: Callable[[bytes], bool]) -> None:
    in_order = [key for key in keys if ordered(key)]
    if group.num_members != len(keys):
        raise InvariantError("a group counts its blocks wrongly")
    if len(group.policy) != len(in_order) or any(key not in group.policy for key in in_order):
        raise InvariantError("a group's policy holds other blocks than the group")
    group.policy.check()
