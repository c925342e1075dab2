"""Who may keep what: from what an operator writes to rules that the store understands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvstore.errors import ConfigError
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.retention import Lifetime, Retention, TenantRule

if TYPE_CHECKING:  # so that reading settings does not wait for torch
    from engine_adapter.engine.models import LoadedModel


@dataclass(frozen=True, slots=True)
class PrefixRule:
    """How long prompts live that begin with ``text`` or ``token_ids``; ``place`` names it in errors.

    ``tenant`` is the tenant's digest (``Namespace.tenant``), empty: requests without a salt. ``lora`` is an
    adapter.
    """

    place: str
    lifetime: Lifetime
    text: str = ""
    token_ids: tuple[int, ...] = ()
    tenant: str = ""
    lora: str | None = None


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """A ``Retention`` whose prefixes are not keys yet: those depend on the model that is served."""

    others: TenantRule = field(default_factory=TenantRule)
    tenants: Mapping[str, TenantRule] = field(default_factory=dict)
    namespaces: Mapping[bytes, Mapping[str, int]] = field(default_factory=dict)
    prefixes: tuple[PrefixRule, ...] = ()

    def resolved(self, model: LoadedModel, tokenizer: Any) -> Retention:
        """Return the rules for a model. Raises ``ConfigError`` for a prefix that it cannot have."""
        prefixes: dict[bytes, Lifetime] = {}
        for rule in self.prefixes:
            key = _key_of(rule, model, tokenizer)
            if key in prefixes:
                raise ConfigError("retention", f"{rule.place}: begins with the same blocks as one before it")
            prefixes[key] = rule.lifetime
        return Retention(self.others, self.tenants, self.namespaces, prefixes)


def without_absent(retention: Retention, tiers: Collection[str]) -> Retention:
    """Return the rules without quotas of tiers that this server runs without."""
    return replace(
        retention,
        others=_only_in(retention.others, tiers),
        tenants={salt: _only_in(rule, tiers) for salt, rule in retention.tenants.items()},
        namespaces={
            digest: {tier: quota for tier, quota in quotas.items() if tier in tiers}
            for digest, quotas in retention.namespaces.items()
        },
    )


def _only_in(rule: TenantRule, tiers: Collection[str]) -> TenantRule:
    return replace(rule, quotas={tier: quota for tier, quota in rule.quotas.items() if tier in tiers})


def _key_of(rule: PrefixRule, model: LoadedModel, tokenizer: Any) -> bytes:
    """Return the key of the last whole block of a prefix."""
    tokens = list(rule.token_ids) or list(tokenizer.encode(rule.text, add_special_tokens=False))
    if max(tokens, default=0) >= model.vocab_size:
        raise ConfigError("retention", f"{rule.place}.token_ids: must be below {model.vocab_size}")
    namespace = _namespace_of(rule, model)
    keys = chain_keys(namespace.digest, tokens, namespace.block_tokens)
    if not keys:
        told = f"has {len(tokens)} tokens, which is less than one block of {namespace.block_tokens}"
        raise ConfigError("retention", f"{rule.place}: {told}")
    return keys[-1]


def _namespace_of(rule: PrefixRule, model: LoadedModel) -> Namespace:
    namespace = replace(model.namespace, salt=rule.tenant)
    if rule.lora is None:
        return namespace
    digest = model.adapters.digests.get(rule.lora)
    if digest is None:
        raise ConfigError("retention", f"{rule.place}.lora: no adapter that is served is called {rule.lora}")
    return namespace.with_lora(digest, rule.lora)
