"""The namespaces of one model: its own, and those of its adapters, each again for every tenant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvstore.namespace import Namespace
from kvstore.store import TieredStore


@dataclass(frozen=True, slots=True)
class Namespaces:
    """``base`` is the model's own; ``loras`` are content digests of adapters, by name."""

    base: Namespace
    loras: Mapping[str, str]

    def of(self, salt: str, lora: str | None, tenant: str) -> Namespace:
        """Return a tenant's namespace for that adapter, of those who know this secret."""
        namespace = self.base if lora is None else self.base.with_lora(self.loras[lora], lora)
        return namespace.with_salt(salt, tenant)

    def register(self, store: TieredStore) -> None:
        """Have manifests kept of those that need no secret. Never blocks."""
        for lora in (None, *self.loras):
            store.register_namespace(self.of("", lora, ""))
