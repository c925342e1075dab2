"""Bodies of the routes over which other machines use the store."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from api.examples import body_example
from kvstore.namespace import MOST_MANIFEST_BYTES
from kvstore.remote.told_pool import MOST_AT_ONCE
from kvstore.remote.wire import MOST_KEYS
from kvstore.retention import MAX_LIFETIME_S

_MOST_BLOCK_BYTES = 1 << 30

_KEY = "0f" * 16


def key_bytes(text: str) -> bytes:
    """Return a key that was sent in hexadecimal."""
    return bytes.fromhex(text)


Key = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=[_KEY])]
Keys = Annotated[list[Key], Field(max_length=MOST_KEYS)]
Seconds = Annotated[float, Field(gt=0, le=MAX_LIFETIME_S, allow_inf_nan=False)]
Wait = Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)]


class NamespaceFields(BaseModel):
    """The body of ``POST /store/namespaces``."""

    model_config = body_example({"manifest": "{}"})

    manifest: Annotated[str, Field(max_length=MOST_MANIFEST_BYTES)]


class LookupFields(BaseModel):
    """The body of ``POST /store/lookups``: the keys of a prompt's blocks, in order."""

    model_config = body_example({"keys": [_KEY], "ttl_s": 3600.0})

    keys: Keys
    lease_s: Seconds | None = None
    ttl_s: Seconds | None = None


class KeysFields(BaseModel):
    """A body that names blocks."""

    model_config = body_example({"keys": [_KEY]})

    keys: Keys


Tiers = Annotated[list[Annotated[str, Field(min_length=1, max_length=64)]], Field(max_length=64)]


class PinWish(KeysFields):
    """The body of ``POST /store/pin``: for how long, or until when (epoch seconds)."""

    model_config = body_example({"keys": [_KEY], "for_s": 3600.0})

    for_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    until_s: Annotated[float, Field(allow_inf_nan=False)] | None = None
    tiers: Tiers | None = None


class UnpinWish(KeysFields):
    """The body of ``POST /store/unpin``."""

    model_config = body_example({"keys": [_KEY], "tiers": ["host"]})

    tiers: Tiers | None = None


_Name = Annotated[str, Field(pattern=r"^([0-9a-f]{32})?$")]
_Named = Annotated[list[_Name], Field(min_length=3, max_length=3, examples=[[_KEY, "", _KEY]])]


class PoolFields(BaseModel):
    """The body of ``POST /store/pool``: what has changed in an engine's own pool.

    A block that is ``added`` is its key, its parent (or nothing) and its namespace.
    """

    model_config = body_example({"epoch": None, "added": [[_KEY, "", _KEY]], "removed": []})

    epoch: Annotated[str, Field(max_length=64)] | None = None
    added: Annotated[list[_Named], Field(max_length=MOST_AT_ONCE)] = []
    removed: Annotated[list[Key], Field(max_length=MOST_AT_ONCE)] = []


class InquiryFields(KeysFields):
    """The body of ``POST /store/inquiries``."""

    model_config = body_example({"keys": [_KEY], "timeout_s": 1.0})

    timeout_s: Wait = 10.0
    block_bytes: Annotated[int, Field(gt=0, le=_MOST_BLOCK_BYTES)] | None = None


class ReservationFields(BaseModel):
    """The body of ``POST /store/reservations``: a block that is offered."""

    model_config = body_example({"namespace": _KEY, "key": _KEY, "nbytes": 1048576})

    namespace: Key
    key: Key
    parent: Key | None = None
    nbytes: Annotated[int, Field(gt=0, le=_MOST_BLOCK_BYTES)]
    num_tokens: Annotated[int, Field(ge=0, le=1 << 20)] | None = None
    first_token: Annotated[int, Field(ge=0, le=1 << 40)] | None = None
    ttl_s: Seconds | None = None


class FlushFields(BaseModel):
    """The body of ``POST /store/flush``."""

    model_config = body_example({"timeout_s": 10.0})

    timeout_s: Wait = 10.0


class ClearFields(BaseModel):
    """The body of ``POST /store/clear``; without a tier all are cleared."""

    model_config = body_example({"tier": "host"})

    tier: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    timeout_s: Wait = 60.0
