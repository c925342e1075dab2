"""What is said between a store's server and its clients on one machine: kinds of messages and their forms.

A client has two connections to the server's socket. Over the first it *calls*: most messages have one answer,
in their order. Over the second the server *tells* of what has ended meanwhile. Little-endian throughout.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from kvstore.errors import ChannelError

PROTOCOL_VERSION = 1
KEY_BYTES = 16
NO_TIER = 255
UNKNOWN = -1
MOST_KEYS = 65_536
"""In one lookup: a million tokens in the usual blocks of 16."""


class Kind(IntEnum):
    """What a message is. Those marked * have no answer."""

    HELLO = 1  # JSON: who calls; answered with WELCOME and the staging memory's descriptor
    LISTEN = 2  # JSON: which client's news this connection is for; answered with WELCOME
    JOIN = 21  # JSON: which client calls over this connection too; answered with WELCOME
    WELCOME = 3  # JSON
    REFUSED = 4  # JSON: the error's name and facts
    NAMESPACE = 5  # a manifest's JSON; answered with ANSWER: the namespace as the server has it
    LOOKUP = 6  # Asked and keys; answered with HIT
    HIT = 7  # HitHead and a Place for each key
    RELEASE = 8  # * a lease's number
    LOAD = 9  # * LoadOrder: its end is told
    LET_GO = 10  # * a ticket's number: its bytes are not needed any more
    RESERVE = 11  # Offered and namespace, key, parent; answered with RESERVED: a number, 0: not wanted
    RESERVED = 12
    COMMIT = 13  # * Commitment: its end is told
    ABORT = 14  # * a reservation's number
    MAP = 15  # slabs' numbers: the wanted one and those mapped; answered with SLAB and its descriptor
    SLAB = 16  # SlabHead and the numbers of the mapped ones that are gone
    CALL = 17  # JSON: a method and its arguments; answered with ANSWER
    ANSWER = 18  # JSON
    LOADED = 19  # told: Ended and its Place
    STAGED = 20  # told: a reservation's number: its staging memory is free again
    INQUIRE = 22  # * InquiryOrder and keys: its end is told
    INQUIRED = 23  # told: an inquiry's number


class Place(NamedTuple):
    """Where a block lies: its fastest tier (``NO_TIER``: nowhere), and in memory its slot and checksum.

    ``slab`` 0: not in memory that can be mapped.
    """

    tier: int
    slab: int
    offset: int
    nbytes: int
    generation: int
    checksum: int


NOWHERE = Place(NO_TIER, 0, 0, 0, 0, 0)
PLACE = struct.Struct("<B3xIQQQQ")
ASKED = struct.Struct("<dd")
"""Seconds: of the lease and the TTL; NaN: as the server has it."""
HIT_HEAD = struct.Struct("<QdI")
"""The lease's number (0: there is none), the seconds it lasts, the number of places that follow."""
NUMBER = struct.Struct("<Q")
LOAD_ORDER = struct.Struct("<QIQd")
"""The lease's number, the index of the block, the ticket's number, and the seconds it may take."""
OFFERED = struct.Struct("<QqqdB7x")
"""Bytes, filled tokens and position of the first (``UNKNOWN``), TTL in seconds, the parent key's length."""
INQUIRY_ORDER = struct.Struct("<Qdq")
"""The inquiry's number, the seconds it may take, and the bytes of a block (``UNKNOWN``: any)."""
COMMITMENT = struct.Struct("<QQ")
"""The reservation's number, and where in the staging memory the block's bytes are."""
SLAB_HEAD = struct.Struct("<QIB3x")
"""Stride in bytes, the number of slots, and whether there is such a slab for this client."""
SLAB_NUMBER = struct.Struct("<I")
ENDED = struct.Struct("<QB7x")
"""A ticket's number, and whether its block arrived."""


def pack_json(value: object) -> bytes:
    """Return a message's body of plain data."""
    return json.dumps(value, separators=(",", ":")).encode()


def unpack_json(body: memoryview) -> dict[str, Any]:
    """Return a message's plain data. Raises ``ChannelError`` when it is no JSON object."""
    try:
        value = json.loads(bytes(body))
    except (ValueError, RecursionError) as error:
        raise ChannelError("a message is not JSON") from error
    if not isinstance(value, dict):
        raise ChannelError("a message is no JSON object")
    return value


def unpack(form: struct.Struct, body: memoryview) -> tuple[Any, ...]:
    """Return the fields at the front of ``body``. Raises ``ChannelError`` when it is too short."""
    if len(body) < form.size:
        raise ChannelError(f"a message of {len(body)} bytes is cut short")
    return form.unpack_from(body)


def unpack_keys(body: memoryview) -> list[bytes]:
    """Return the keys that fill ``body``. Raises ``ChannelError`` for a part of one, or too many."""
    num_keys, rest = divmod(len(body), KEY_BYTES)
    if rest or num_keys > MOST_KEYS:
        raise ChannelError(f"{len(body)} bytes are not up to {MOST_KEYS} keys of {KEY_BYTES} bytes")
    data = bytes(body)
    return [data[start : start + KEY_BYTES] for start in range(0, len(data), KEY_BYTES)]


def pack_places(places: Sequence[Place]) -> bytes:
    """Return the bytes of some places."""
    return b"".join(PLACE.pack(*place) for place in places)


def unpack_places(body: memoryview) -> list[Place]:
    """Return the places that fill ``body``. Raises ``ChannelError`` for a part of one."""
    if len(body) % PLACE.size:
        raise ChannelError("a place is cut short")
    return [Place(*fields) for fields in PLACE.iter_unpack(body)]
