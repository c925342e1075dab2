"""The block frame: a fixed header in front of a block's bytes, in every persistent tier.

Little-endian, 192 bytes, the last 8 of them the xxh3 of those before::

    offset  bytes  field
         0      4  magic "PFXD"
         4      2  format version
         6      1  codec (0: raw)
         7      1  length of the parent key (0 at the start of a prompt)
         8      4  tokens in the block
        12      4  parts the payload is split into
        16      8  stored bytes (payload as it lies on the medium)
        24      8  raw bytes (payload after decoding)
        32      8  created, epoch milliseconds
        40      8  soft expiry, epoch milliseconds (0: never)
        48      8  hard expiry, epoch milliseconds (0: never)
        56      8  xxh3-64 of the stored payload
        64     16  namespace digest
        80     16  key
        96     16  parent key, padded with zeros
       112      8  pinned until, epoch milliseconds (0: not pinned)
       120     64  reserved, zero
       184      8  xxh3-64 of bytes 0 to 183
"""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass

from xxhash import xxh3_64, xxh3_64_intdigest

from kvstore.errors import FrameError, UnknownFormError

FRAME_VERSION = 1
HEADER_BYTES = 192
NEVER_MS = 0
RAW_CODEC = 0

_MAGIC = b"PFXD"
_FIELDS = struct.Struct("<4sHBBIIQQQQQQ16s16s16sQ64x")
_SEAL = struct.Struct("<Q")
# A piece stays in the processor's cache between being copied and being hashed.
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Expiry:
    """When a block ends, in epoch milliseconds of the wall clock; 0 means never.

    ``soft_ms`` may be extended by later requests, ``hard_ms`` never.
    """

    soft_ms: int = NEVER_MS
    hard_ms: int = NEVER_MS

    @property
    def at_ms(self) -> int:
        """The earlier of the two limits that are set; 0 when neither is."""
        if self.soft_ms and self.hard_ms:
            return min(self.soft_ms, self.hard_ms)
        return self.soft_ms or self.hard_ms

    def is_over(self, now_ms: int) -> bool:
        """Say whether the earlier of them is over."""
        return 0 < self.at_ms <= now_ms


@dataclass(frozen=True, slots=True)
class Header:
    """The facts of a stored block; see the module's table for units and layout."""

    namespace: bytes
    key: bytes
    parent: bytes
    block_tokens: int
    stored_bytes: int
    raw_bytes: int
    created_ms: int
    expiry: Expiry
    checksum: int
    codec: int = RAW_CODEC
    parts: int = 1
    pinned_ms: int = 0
    version: int = FRAME_VERSION

    @property
    def is_of_this_version(self) -> bool:
        """Whether its frame has the format that is written here."""
        return self.version == FRAME_VERSION

    def pack(self) -> bytes:
        """Return the 192 header bytes."""
        body = _FIELDS.pack(
            _MAGIC,
            self.version,
            self.codec,
            len(self.parent),
            self.block_tokens,
            self.parts,
            self.stored_bytes,
            self.raw_bytes,
            self.created_ms,
            self.expiry.soft_ms,
            self.expiry.hard_ms,
            self.checksum,
            self.namespace,
            self.key,
            self.parent,
            self.pinned_ms,
        )
        return body + _SEAL.pack(xxh3_64_intdigest(body))

    @classmethod
    def unpack(cls, data: bytes | memoryview) -> Header:
        """Read a header back.

        Raises ``UnknownFormError`` for another version's, ``FrameError`` for anything else but a sound one.
        """
        if len(data) < HEADER_BYTES:
            raise FrameError(f"a header of {len(data)} bytes is cut short")
        body = bytes(data[: HEADER_BYTES - _SEAL.size])
        magic, version, codec, parent_bytes, block_tokens, parts, *rest = _FIELDS.unpack(body)
        if magic != _MAGIC:
            raise FrameError("no block header")
        if version != FRAME_VERSION:
            raise UnknownFormError(f"frame version {version}, this is version {FRAME_VERSION}")
        if _SEAL.unpack(data[HEADER_BYTES - _SEAL.size : HEADER_BYTES])[0] != xxh3_64_intdigest(body):
            raise FrameError("the header's checksum does not match")
        stored, raw, created, soft, hard, checksum, namespace, key, parent, pinned = rest
        return cls(
            namespace, key, parent[:parent_bytes], block_tokens, stored, raw, created,
            Expiry(soft, hard), checksum, codec, parts, pinned,
        )  # fmt: skip


def identify(data: bytes | memoryview, key: bytes, stored_bytes: int) -> Header:
    """Return the header of a frame that was found under ``key``, with ``stored_bytes`` behind it.

    Of one in another version's format that is all that is known. Raises ``FrameError`` for what is
    no sound header.
    """
    is_header = len(data) >= HEADER_BYTES and data[: len(_MAGIC)] == _MAGIC
    version = int.from_bytes(data[4:6], "little") if is_header else FRAME_VERSION
    if version == FRAME_VERSION:
        return Header.unpack(data)
    return Header(b"", key, b"", 0, stored_bytes, 0, 0, Expiry(), 0, version=version)


def checksum(payload: bytes | memoryview) -> int:
    """Return the xxh3-64 of ``payload``."""
    return xxh3_64_intdigest(payload)


def copy(source: memoryview, target: memoryview) -> None:
    """Copy ``source`` into ``target`` (equal lengths, format ``B``); other threads run meanwhile."""
    is_plain = source.c_contiguous and target.c_contiguous and not source.readonly
    if not is_plain or not _PIECE_BYTES <= source.nbytes == len(source) == len(target):
        target[:] = source
        return
    from_here, to_there = (ctypes.c_char.from_buffer(view) for view in (source, target))
    ctypes.memmove(ctypes.addressof(to_there), ctypes.addressof(from_here), len(source))


def copy_and_checksum(source: memoryview, target: memoryview) -> int:
    """Copy ``source`` into ``target`` (equal lengths) and return the xxh3-64 of what was copied."""
    digest = xxh3_64()
    for start in range(0, len(source), _PIECE_BYTES):
        piece = target[start : start + _PIECE_BYTES]
        piece[:] = source[start : start + _PIECE_BYTES]
        digest.update(piece)
    return digest.intdigest()
