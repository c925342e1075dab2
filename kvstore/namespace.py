"""A namespace: everything that makes equal tokens give different keys and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

NAMESPACE_BYTES = 16
DIGEST_CHARACTERS = 32
MANIFEST_VERSION = 1
MOST_MANIFEST_BYTES = 1 << 20
"""Longer ones are not read: what lies on a medium may be anything."""
_MOST_CHARACTERS = 4096
_MOST_NUMBER = 1 << 20
_MOST_LEVELS = 32

AT_REST_LAYOUT = "layer,kv,token,head,dim"


@dataclass(frozen=True)
class Namespace:
    """The complete identity of stored KV; two namespaces never share a block.

    ``weights`` and ``lora`` are content digests (hex), ``model_config`` is canonical JSON of
    everything in the model's configuration that shapes its KV (RoPE included), ``salt`` holds digests of
    whose it is, never a salt itself: see ``with_salt``. ``label`` is for people only: it is kept in
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

    @property
    def tenant(self) -> str:
        """The digest of whose it is: of a tenant's name, or else of a salt; empty: nobody's in particular."""
        return self.salt[:DIGEST_CHARACTERS]

    def with_salt(self, salt: str, tenant: str = "") -> Namespace:
        """Return this namespace for those who know the secret ``salt``; empty means no salt.

        With a ``tenant``, the name of one who is known by a token, it is that tenant's, whatever the salt.
        """
        digests = (tenant_digest(tenant) if tenant else "", salt_digest(salt) if salt else "")
        return replace(self, salt="".join(digests))

    def owned_by(self, tenant: str) -> Namespace:
        """Return what stands for this namespace, as a tenant's client describes it, among the tenant's own.

        It is the one that the same client would have through ``with_salt``, and itself if it is one already.
        """
        own, salt = tenant_digest(tenant), self.salt
        if salt.startswith(own) and (salt == own or _is_digest(salt[DIGEST_CHARACTERS:])):
            return self
        return replace(self, salt=own + (salt if not salt or _is_digest(salt) else salt_digest(salt)))

    def with_lora(self, digest: str, name: str) -> Namespace:
        """Return this namespace for the adapter whose content has ``digest``; ``name`` is for people."""
        return replace(self, lora=digest, label=f"{self.label} with {name}")

    def manifest(self) -> str:
        """Return the readable manifest kept beside the blocks (JSON, indented, no secrets)."""
        facts = {"manifest_version": MANIFEST_VERSION, "digest": self.digest.hex(), **asdict(self)}
        facts["model_config"] = json.loads(self.model_config)
        return json.dumps(facts, indent=2, sort_keys=True) + "\n"

    @classmethod
    def from_manifest(cls, text: str) -> Namespace:
        """Read a manifest back. Raises ``ValueError`` when it is not one of this version, or malformed."""
        try:
            facts = json.loads(text)
        except RecursionError as error:
            raise ValueError("the manifest is nested too deeply") from error
        if not isinstance(facts, dict) or facts.pop("manifest_version", None) != MANIFEST_VERSION:
            raise ValueError("a manifest of another version")
        digest = facts.pop("digest", None)
        _refuse_odd(facts)
        facts["model_config"] = canonical_json(facts.get("model_config"))
        types = {field.name: int if field.type == "int" else str for field in fields(cls)}
        if any(type(value) is not types.get(name) for name, value in facts.items()):
            raise ValueError("a field of the manifest is of another kind")
        try:
            namespace = cls(**facts)
        except TypeError as error:
            raise ValueError("a field is missing in the manifest") from error
        if namespace.digest.hex() != digest:
            raise ValueError("the manifest does not match its digest")
        return namespace


def differing_fields(one: Namespace, other: Namespace) -> list[str]:
    """Return the names of the identity's fields that differ, those of ``model_config`` one by one.

    Their names are dotted: ``model_config.rope_parameters.rope_theta``.
    """
    return [
        name
        for field in fields(Namespace)
        if field.name != "label"
        for name in _differences(field.name, _value_of(one, field.name), _value_of(other, field.name))
    ]


def _value_of(namespace: Namespace, name: str) -> Any:
    value = getattr(namespace, name)
    return json.loads(value) if name == "model_config" else value


def _differences(name: str, one: Any, other: Any) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from _differences(f"{name}.{key}", one.get(key), other.get(key))
    elif one != other:
        yield name


def canonical_json(value: object) -> str:
    """Return JSON that is the same text for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def salt_digest(salt: str) -> str:
    """Return the hex digest that stands for a secret salt."""
    return blake2b(salt.encode(), digest_size=16, person=b"prefixd-salt").hexdigest()


def tenant_digest(name: str) -> str:
    """Return the hex digest that stands for a tenant who is known by a token."""
    return blake2b(name.encode(), digest_size=16, person=b"prefixd-tenant").hexdigest()


def _refuse_odd(facts: dict[str, Any]) -> None:
    """Raise ``ValueError`` for what could not be told on, or worked with: anybody may write a manifest."""
    if not _is_shallow(facts, _MOST_LEVELS):
        raise ValueError("the manifest is nested too deeply")
    try:
        json.dumps(facts, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise ValueError("the manifest is no text") from error
    for name, value in facts.items():
        if isinstance(value, str) and len(value) > _MOST_CHARACTERS:
            raise ValueError(f"{name} is longer than {_MOST_CHARACTERS} characters")
        if type(value) is int and not (0 if name == "tp_rank" else 1) <= value <= _MOST_NUMBER:
            raise ValueError(f"{name} is no number that can be")


def _is_shallow(value: object, num_levels: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    parts = value.values() if isinstance(value, dict) else value
    return num_levels > 0 and all(_is_shallow(part, num_levels - 1) for part in parts)


def _is_digest(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None
