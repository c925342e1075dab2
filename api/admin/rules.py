"""Changing the rules of a running store: quotas of tenants and namespaces, and pin budgets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock

from kvstore.retention import Retention, TenantRule
from kvstore.store import TieredStore

OTHERS = "others"

Budgets = Mapping[str, int]
Changes = Mapping[str, int | None]


class Rules:
    """The rules of a store, changed one after the other. Thread-safe; a change looks once at every block."""

    def __init__(self, store: TieredStore) -> None:
        self._store = store
        self._lock = Lock()

    @property
    def now(self) -> Retention:
        """The rules that hold now."""
        return self._store.retention

    def budget_namespace(self, digest: bytes, changes: Changes) -> Budgets:
        """Bound a namespace's bytes by tier, ``None``: no more; returns all its bounds.

        Raises ``ConfigError`` for tiers that are not there.
        """

        def changed(rules: Retention) -> Retention:
            budgets = _changed(rules.namespaces.get(digest, {}), changes)
            others = {known: bound for known, bound in rules.namespaces.items() if known != digest}
            return replace(rules, namespaces={**others, digest: budgets} if budgets else others)

        return self._change(changed).namespaces.get(digest, {})

    def set_quotas(self, tenant: str, changes: Changes, pin_bytes: int | None) -> TenantRule:
        """Bound a tenant's bytes by tier, and what it may pin; ``others``: everybody without a rule.

        A tenant without a rule of its own gets one, which begins as what holds for others.
        """

        def changed(rules: Retention) -> Retention:
            before = rules.others if tenant == OTHERS else rules.tenant(tenant)
            pins = before.pin_bytes if pin_bytes is None else pin_bytes
            rule = replace(before, quotas=_changed(before.quotas, changes), pin_bytes=pins)
            if tenant == OTHERS:
                return replace(rules, others=rule)
            return replace(rules, tenants={**rules.tenants, tenant: rule})

        rules = self._change(changed)
        return rules.others if tenant == OTHERS else rules.tenant(tenant)

    def _change(self, changed: Callable[[Retention], Retention]) -> Retention:
        with self._lock:
            rules = changed(self._store.retention)
            self._store.set_retention(rules)
        return rules


def _changed(before: Budgets, changes: Changes) -> dict[str, int]:
    merged = {**before, **changes}
    return {tier: nbytes for tier, nbytes in merged.items() if nbytes is not None}
