"""Which blocks an operator means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvstore.errors import RequestError
from kvstore.namespace import Namespace


@dataclass(frozen=True, slots=True)
class BlockFilter:
    """The blocks for which all that is given holds; nothing given: all there are.

    ``keys`` names them, in any order. ``tenant`` is the digest of a tenant (empty: blocks without a salt),
    ``model`` a model's label or the beginning of its weights' digest, ``namespace`` a digest, ``prefix`` the
    key of a block: it and all that follow it. ``tier`` must have it, the engine's own pool included. Ages
    count from the first write, idle times from the last use that is known. Raises ``RequestError`` for what
    cannot be.
    """

    keys: tuple[bytes, ...] | None = None
    tenant: str | None = None
    model: str | None = None
    namespace: bytes | None = None
    prefix: bytes | None = None
    tier: str | None = None
    min_age_s: float | None = None
    max_age_s: float | None = None
    min_idle_s: float | None = None
    max_idle_s: float | None = None
    is_pinned: bool | None = None

    def __post_init__(self) -> None:
        for name in ("min_age_s", "max_age_s", "min_idle_s", "max_idle_s"):
            value_s = getattr(self, name)
            if value_s is not None and not value_s >= 0:
                raise RequestError(name, "must be 0 seconds or more")
        if self.model is not None and not self.model:
            raise RequestError("model", "name a label, or the beginning of a weights' digest")

    def is_of_model(self, namespace: Namespace | None) -> bool:
        """Say whether a namespace is of the model that is asked for."""
        if self.model is None:
            return True
        if namespace is None:
            return False
        return namespace.label == self.model or namespace.weights.startswith(self.model)


def described(namespaces: Mapping[bytes, Namespace], wanted: BlockFilter) -> set[bytes] | None:
    """Return the digests of the namespaces that ``wanted`` may mean; ``None``: any."""
    if wanted.model is None:
        return None if wanted.namespace is None else {wanted.namespace}
    of_model = {digest for digest, namespace in namespaces.items() if wanted.is_of_model(namespace)}
    return of_model if wanted.namespace is None else of_model & {wanted.namespace}
