"""The codec ``zstd-planes``: blocks split into byte planes, each compressed on its own.

Numbers of a kind have like exponents and mantissas that look random. In a plane of its own the
exponents' byte shrinks, and the mantissas' does not stand in its way. The stored form,
little-endian::

    offset  bytes  field
         0      1  form, 1
         1      1  item_bytes, n: 1, 2 or 4
         2  4 x n  stored bytes of each plane, that of the lowest byte first
     2+4xn         the planes; one with all its bytes lies as it is, a shorter one is a zstd frame
"""

from __future__ import annotations

import struct
from threading import local
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from kvstore.errors import ConfigError, FrameError

NUMBER = 1

_FORM = 1
_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}
# A plane whose middle does not shrink by a sixteenth is not worth the time that all of it takes.
_SAMPLE_BYTES = 4096
# Next to all gain is in coding frequent bytes shortly. Long matches and a small table keep the search for
# repetitions short: on KV in bf16 three times as fast as plain level 1, and smaller too.
_PARAMETERS = zstandard.ZstdCompressionParameters(
    compression_level=1, strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6
)

Plane = NDArray[np.uint8]


class BytePlanes:
    """Splits blocks by ``item_bytes`` (1, 2 or 4), the size of a number in them.

    Blocks of any item size can be decoded. Raises ``ConfigError`` for another size. Thread-safe.
    """

    number = NUMBER

    def __init__(self, item_bytes: int) -> None:
        if item_bytes not in _TYPES:
            raise ConfigError("item_bytes", f"must be one of {', '.join(map(str, _TYPES))}, not {item_bytes}")
        self._item_bytes = item_bytes
        self._layout = _layout(item_bytes)
        self._own = _Own()

    def encode(self, raw: memoryview, out: memoryview) -> int | None:
        if len(raw) % self._item_bytes or not raw:
            return None
        items = np.frombuffer(raw, _TYPES[self._item_bytes])
        end = self._layout.size
        lengths = []
        for index in range(self._item_bytes):
            plane = self._own.shortest(self._own.split(items, index))
            end += len(plane)
            if end >= len(raw):
                return None
            out[end - len(plane) : end] = plane
            lengths.append(len(plane))
        self._layout.pack_into(out, 0, _FORM, self._item_bytes, *lengths)
        return end

    def decode(self, stored: memoryview, out: memoryview) -> None:
        planes = _stored_planes(stored, len(out))
        items = np.frombuffer(out, _TYPES[len(planes)])
        items[:] = self._own.plane(planes[-1], len(items))
        for stored_plane in reversed(planes[:-1]):
            np.left_shift(items, 8, out=items)
            np.bitwise_or(items, self._own.plane(stored_plane, len(items)), out=items)


class _Own(local):
    """What a thread needs for itself: memory, and zstd's contexts, which are for one at a time."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
        self._decompressor = zstandard.ZstdDecompressor()
        self._shifted = np.empty(0, np.uint8)
        self._plane = np.empty(0, np.uint8)

    def split(self, items: NDArray[Any], index: int) -> Plane:
        """Return byte ``index`` of every item, from the lowest; valid until the next call."""
        if self._shifted.dtype != items.dtype or len(self._shifted) != len(items):
            self._shifted, self._plane = np.empty_like(items), np.empty(len(items), np.uint8)
        # In two steps, each of which numpy does many bytes at a time.
        np.right_shift(items, 8 * index, out=self._shifted)
        np.copyto(self._plane, self._shifted, casting="unsafe")
        return self._plane

    def shortest(self, plane: Plane) -> memoryview:
        """Return a zstd frame of ``plane`` if that is shorter, or ``plane``."""
        middle = max(0, len(plane) - _SAMPLE_BYTES) // 2
        sample = plane[middle : middle + _SAMPLE_BYTES]
        if len(self._compressor.compress(sample.data)) > len(sample) * 15 // 16:
            return plane.data
        packed = self._compressor.compress(plane.data)
        return memoryview(packed) if len(packed) < len(plane) else plane.data

    def plane(self, stored: memoryview, nbytes: int) -> Plane:
        """Return the plane of ``nbytes`` that ``stored`` holds. Raises ``FrameError``."""
        if len(stored) == nbytes:
            return np.frombuffer(stored, np.uint8)
        try:
            # The size that a frame claims is allocated at once, so it is looked at first.
            if zstandard.frame_content_size(stored) != nbytes:
                raise FrameError("a plane of another length")
            plane = self._decompressor.decompress(stored, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise FrameError(f"a plane cannot be decompressed: {error}") from error
        if len(plane) != nbytes:
            raise FrameError("a plane is cut short")
        return np.frombuffer(plane, np.uint8)


def _stored_planes(stored: memoryview, raw_bytes: int) -> list[memoryview]:
    """Return the planes as they are stored, the lowest first. Raises ``FrameError`` unless all adds up."""
    if len(stored) < 2 or stored[0] != _FORM or stored[1] not in _TYPES or raw_bytes % stored[1]:
        raise FrameError("not split into byte planes")
    layout = _layout(stored[1])
    if len(stored) < layout.size:
        raise FrameError("the lengths of the planes are cut short")
    start = layout.size
    planes = []
    for nbytes in layout.unpack_from(stored)[2:]:
        planes.append(stored[start : start + nbytes])
        start += nbytes
    if start != len(stored) or any(len(plane) > raw_bytes // stored[1] for plane in planes):
        raise FrameError("the planes have other lengths than they say")
    return planes


def _layout(item_bytes: int) -> struct.Struct:
    return struct.Struct(f"<BB{item_bytes}I")
