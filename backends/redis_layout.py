"""How a frame lies in Redis: its keys, the commands that move it, and the memory it takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from backends.redis_wire import Piece
from kvstore.frame import FRAME_VERSION, HEADER_BYTES, Header

PART_BYTES = 1 << 20
MOST_PARTS = 4096
"""No block has more; a header that a stranger wrote may claim anything."""
MANIFESTS = b"prefixd:%d:namespaces" % FRAME_VERSION
"""A hash of all manifests, so that they are found without walking through the blocks."""

_PREFIX = b"prefixd:%d:" % FRAME_VERSION  # another size of parts needs another version, too
_KEY_MEMORY_BYTES = 160  # a key's name, its entries in two tables, and what an allocator keeps
_VALUE_MEMORY_BYTES = 32


def header_name(key: bytes) -> bytes:
    """Return the Redis key of a block's header; what is in braces alone decides the cluster slot."""
    return _PREFIX + b"{" + key.hex().encode() + b"}"


def part_name(key: bytes, number: int) -> bytes:
    """Return the Redis key of a block's part ``number``, from 0."""
    return header_name(key) + b":%d" % number


def num_parts(payload_bytes: int) -> int:
    """Return how many parts a payload of that length is split into."""
    return -(-payload_bytes // PART_BYTES)


def command(*words: bytes) -> bytes:
    """Return a command of short words as it is sent."""
    return b"".join([b"*%d\r\n" % len(words), *(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)])


def fetch(key: bytes, most_parts: int) -> bytes:
    """Return the command that reads a header and up to ``most_parts`` parts, all at one moment."""
    template, num_names = _fetch_template(len(key), most_parts)
    return template % ((key.hex().encode(),) * num_names)


def fetch_headers(keys: Sequence[bytes]) -> bytes:
    """Return commands that read a header each; keys are of one length."""
    before, after = _header_template(len(keys[0]))
    return b"".join([before, (after + before).join([key.hex().encode() for key in keys]), after])


def remove(key: bytes, most_parts: int) -> bytes:
    """Return the command that removes a header and up to ``most_parts`` parts, all at one moment."""
    parts = (part_name(key, number) for number in range(most_parts))
    return command(b"UNLINK", header_name(key), *parts)


def store(key: bytes, header: memoryview, payload: memoryview, raw_bytes: int, at_ms: int) -> list[Piece]:
    """Return commands that store a frame in one transaction, its header last; payloads are not copied.

    ``at_ms`` is when all of it expires (epoch milliseconds, 0: never). Parts that an earlier frame
    of this key may have had beyond those of this one go in the same transaction.
    """
    expiry = (b"PXAT", b"%d" % at_ms) if at_ms else ()
    count = num_parts(len(payload))
    pieces: list[Piece] = [command(b"MULTI")]
    for number in range(count):
        part = payload[number * PART_BYTES : (number + 1) * PART_BYTES]
        pieces += _set(part_name(key, number), part, expiry)
    stale = [part_name(key, number) for number in range(count, num_parts(raw_bytes))]
    if stale:
        pieces.append(command(b"UNLINK", *stale))
    pieces += _set(header_name(key), header, expiry)
    pieces.append(command(b"EXEC"))
    return pieces


def watch_header(key: bytes) -> bytes:
    """Return the commands that read a header to be rewritten, unless it changes meanwhile."""
    name = header_name(key)
    return command(b"WATCH", name) + command(b"GET", name)


def amend(header: Header) -> tuple[list[Piece], int]:
    """Return commands that rewrite a watched header, and how many replies come.

    All parts expire with it, at the end that it names. It is written last.
    """
    at_ms = header.expiry.at_ms
    expiry = (b"PXAT", b"%d" % at_ms) if at_ms else ()
    names = [part_name(header.key, number) for number in range(num_parts(header.stored_bytes))]
    last = [command(b"PEXPIREAT", name, expiry[1]) if expiry else command(b"PERSIST", name) for name in names]
    rewritten = _set(header_name(header.key), memoryview(header.pack()), expiry)
    return [command(b"MULTI"), *last, *rewritten, command(b"EXEC")], len(names) + 3


def num_replies(payload_bytes: int, raw_bytes: int) -> int:
    """Return how many replies come for ``store`` before that of its last command."""
    count = num_parts(payload_bytes)
    return 1 + count + (num_parts(raw_bytes) > count) + 1


def memory_bytes(payload_bytes: int) -> int:
    """Return the memory that a frame may take in a server, with what allocators round up."""
    whole, rest = divmod(payload_bytes, PART_BYTES)
    values = [HEADER_BYTES, *([rest] if rest else [])]
    taken = sum(_KEY_MEMORY_BYTES + _size_class(value + _VALUE_MEMORY_BYTES) for value in values)
    return taken + whole * (_KEY_MEMORY_BYTES + _size_class(PART_BYTES + _VALUE_MEMORY_BYTES))


def _size_class(nbytes: int) -> int:
    """Round up as jemalloc does: four sizes for each doubling."""
    step = 1 << max(4, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


def _set(name: bytes, value: memoryview, expiry: tuple[bytes, ...]) -> list[Piece]:
    head = b"*%d\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (3 + len(expiry), len(name), name, len(value))
    tail = b"".join([b"\r\n", *(b"$%d\r\n%b\r\n" % (len(word), word) for word in expiry)])
    return [head, value, tail]


@lru_cache(maxsize=256)
def _fetch_template(key_bytes: int, most_parts: int) -> tuple[bytes, int]:
    """Return the command with a gap for each name's key, and how many there are."""
    key = bytes(key_bytes)
    names = [header_name(key), *(part_name(key, number) for number in range(most_parts))]
    return command(b"MGET", *names).replace(key.hex().encode(), b"%b"), len(names)


@lru_cache(maxsize=4)
def _header_template(key_bytes: int) -> list[bytes]:
    """Return what stands before and after the key."""
    key = bytes(key_bytes)
    return command(b"GET", header_name(key)).split(key.hex().encode())
