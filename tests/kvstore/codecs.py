"""A codec for tests of the store."""

from __future__ import annotations

import zlib

from kvstore.errors import FrameError


class ZlibCodec:
    """Deflate; what is malformed raises zlib's own error."""

    number = 201

    def encode(self, raw: memoryview, out: memoryview) -> int | None:
        packed = zlib.compress(raw, 1)
        if len(packed) >= len(raw):
            return None
        out[: len(packed)] = packed
        return len(packed)

    def decode(self, stored: memoryview, out: memoryview) -> None:
        raw = zlib.decompressobj().decompress(stored, len(out) + 1)
        if len(raw) != len(out):
            raise FrameError("another length than the block's")
        out[:] = raw
