"""Rewrites the header of a frame in Redis, and when all of it expires, in one transaction."""

from __future__ import annotations

from backends import redis_layout as layout
from backends.redis_errors import ProtocolError, RefusedError
from backends.redis_wire import Wire
from kvstore.errors import FrameError
from kvstore.frame import Header
from kvstore.seams import HeaderChange


def amend(wire: Wire, key: bytes, change: HeaderChange) -> bool:
    """Do what ``Amending.amend`` says on a connection; it is left as it was, with nothing watched."""
    wire.send([layout.watch_header(key)])
    _, packed = wire.replies(2)
    before = _header(packed, key)
    after = None if before is None else change(before)
    if after is None or after == before:
        wire.send([layout.command(b"UNWATCH")])
        wire.status()
        return after is not None
    pieces, num_replies = layout.amend(after)
    wire.send(pieces)
    results = wire.replies(num_replies)[-1]
    if results is None:  # somebody has written or removed it meanwhile
        return False
    if not isinstance(results, list):
        raise ProtocolError("the results of a transaction were expected")
    for result in results:
        if isinstance(result, RefusedError):
            raise result
    return True


def _header(packed: object, key: bytes) -> Header | None:
    """Return the header that was found, if it is one of this block."""
    if not isinstance(packed, bytes):
        return None
    try:
        header = Header.unpack(packed)
    except FrameError:
        return None
    is_possible = header.key == key and layout.num_parts(header.stored_bytes) <= layout.MOST_PARTS
    return header if is_possible else None
