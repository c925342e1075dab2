"""A namespace: everything that makes equal tokens give different keys and values."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

NAMESPACE_BYTES = 16
MANIFEST_VERSION = 1
AT_REST_LAYOUT = "layer,kv,token,head,dim"


@dataclass(frozen=True)
class Namespace:
    """The complete identity of stored KV; two namespaces never share a block.

    ``weights`` and ``lora`` are content digests (hex), ``model_config`` is canonical JSON of
    everything in the model's configuration that shapes its KV (RoPE included), ``salt`` is the
    digest of a tenant's salt, never the salt itself. ``label`` is for people only: it is kept in
    the manifest and is no part of the identity.
    """

    weights: str
    model_config: str
    compute_dtype: str
    kv_dtype: str
    block_tokens: int
    kv_form: str = "plain"
    layout: str = AT_REST_LAYOUT
    lora: str = ""
    tp_rank: int = 0
    tp_size: int = 1
    salt: str = ""
    label: str = ""

    @cached_property
    def digest(self) -> bytes:
        """The 16 bytes that key every block of this namespace."""
        identity = {name: value for name, value in asdict(self).items() if name != "label"}
        text = canonical_json({"manifest_version": MANIFEST_VERSION, **identity})
        return blake2b(text.encode(), digest_size=NAMESPACE_BYTES).digest()

    def with_salt(self, salt: str) -> Namespace:
        """Return this namespace for the tenant whose secret is ``salt``; empty means no salt."""
        return replace(self, salt=salt_digest(salt) if salt else "")

    def manifest(self) -> str:
        """Return the readable manifest kept beside the blocks (JSON, indented, no secrets)."""
        facts = {"manifest_version": MANIFEST_VERSION, "digest": self.digest.hex(), **asdict(self)}
        facts["model_config"] = json.loads(self.model_config)
        return json.dumps(facts, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_manifest(cls, text: str) -> Namespace:
        """Read a manifest back. Raises ``ValueError`` when it is not one of this version."""
        facts: dict[str, Any] = json.loads(text)
        if facts.pop("manifest_version", None) != MANIFEST_VERSION:
            raise ValueError("a manifest of another version")
        digest = facts.pop("digest", None)
        facts["model_config"] = canonical_json(facts["model_config"])
        namespace = cls(**facts)
        if namespace.digest.hex() != digest:
            raise ValueError("the manifest does not match its digest")
        return namespace


def canonical_json(value: object) -> str:
    """Return JSON that is the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def salt_digest(salt: str) -> str:
    """Return the hex digest that stands for a tenant's secret salt."""
    return blake2b(salt.encode(), digest_size=16, person=b"prefixd-salt").hexdigest()
