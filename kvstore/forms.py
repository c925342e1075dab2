"""The forms in which blocks lie on a medium: as they are, or as a codec writes them."""

from __future__ import annotations

from collections.abc import Iterable
from threading import local
from typing import NamedTuple

from kvstore.clock import Clock
from kvstore.errors import ConfigError, FrameError, UnknownFormError, one_line
from kvstore.frame import RAW_CODEC, Expiry, Header, checksum
from kvstore.record import Record
from kvstore.seams import Codec
from kvstore.slab import map_memory


class Stored(NamedTuple):
    """A block as it is to lie on the medium; ``data`` is valid until its thread encodes the next."""

    codec: int
    data: memoryview


class Opened(NamedTuple):
    """What verifying and decoding told: the checksum of the raw bytes, ``None`` where not taken."""

    checksum: int | None
    decode_s: float


class Forms:
    """What one tier writes, and all that it can read. Thread-safe.

    ``codec`` is what it writes with (``None``: blocks as they are), ``known`` are others it may
    meet. Raises ``ConfigError`` for a codec whose number cannot be, or is another one's as well.
    """

    def __init__(self, codec: Codec | None, known: Iterable[Codec], clock: Clock) -> None:
        self._codec = codec
        self._known: dict[int, Codec] = {}
        self._now_s = clock.monotonic_s
        self._scratch = _Scratch()
        for each in [*known, *([codec] if codec else [])]:
            self._add(each)

    def knows(self, header: Header) -> bool:
        """Say whether blocks of this form can be read here; sizes that cannot be are no form of ours."""
        is_whole = header.is_of_this_version and header.parts == 1
        is_whole = is_whole and 0 < header.stored_bytes <= header.raw_bytes
        return is_whole and (header.codec == RAW_CODEC or header.codec in self._known)

    def encode(self, raw: memoryview) -> Stored:
        """Return the form in which ``raw`` is to be stored; raises what the codec raises."""
        if self._codec is None:
            return Stored(RAW_CODEC, raw)
        out = self._scratch.at_least(len(raw))
        nbytes = self._codec.encode(raw, out)
        if nbytes is None or not 0 < nbytes < len(raw):
            return Stored(RAW_CODEC, raw)
        return Stored(self._codec.number, out[:nbytes])

    def open(self, packed: bytes, record: Record, out: memoryview, stored_bytes: int) -> Opened:
        """Turn the ``stored_bytes`` at the front of ``out`` into the block of ``record``, in ``out``.

        Raises ``UnknownFormError`` for a form that cannot be read here, ``FrameError`` when header
        and bytes are not the block; ``out`` is then undefined.
        """
        header = Header.unpack(packed)
        stored = out[:stored_bytes]
        self._verify(header, record, stored)
        if header.codec == RAW_CODEC:
            return Opened(header.checksum, 0.0)
        began_s = self._now_s()
        self._decode(self._known[header.codec], stored, out)
        return Opened(None, self._now_s() - began_s)

    def _verify(self, header: Header, record: Record, stored: memoryview) -> None:
        if (header.key, header.namespace) != (record.key, record.namespace):
            raise FrameError("the bytes are another block's")
        if not self.knows(header):
            raise UnknownFormError("the block is stored in a form that is not known here")
        if header.raw_bytes != record.raw_bytes or header.stored_bytes != len(stored):
            raise FrameError("the block has another size")
        if header.codec == RAW_CODEC and header.stored_bytes != header.raw_bytes:
            raise FrameError("the block's sizes contradict each other")
        if checksum(stored) != header.checksum:
            raise FrameError("the block's checksum does not match")

    def _decode(self, codec: Codec, stored: memoryview, out: memoryview) -> None:
        encoded = self._scratch.at_least(len(stored))
        encoded[:] = stored
        try:
            codec.decode(encoded, out)
        except Exception as error:  # a plugin may raise anything, and all of it means the same
            raise FrameError(f"the block cannot be decoded: {one_line(error)}") from error

    def _add(self, codec: Codec) -> None:
        if not RAW_CODEC < codec.number <= 255:
            raise ConfigError("codec", f"a codec's number is 1 to 255, not {codec.number}")
        known = self._known.setdefault(codec.number, codec)
        if type(known) is not type(codec):
            names = f"{type(known).__name__} and {type(codec).__name__}"
            raise ConfigError("codec", f"{names} have the same number, {codec.number}")
        self._known[codec.number] = codec


class _Scratch(local):
    """Memory of one thread, page-aligned, kept and used again."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def at_least(self, nbytes: int) -> memoryview:
        if len(self._memory) < nbytes:
            self._memory = map_memory(nbytes)
        return self._memory[:nbytes]


def header_of(facts: Record, stored: Stored, expiry: Expiry) -> Header:
    """Return the header of a block in the form in which it is to be stored."""
    return Header(
        facts.namespace, facts.key, facts.parent, facts.block_tokens, len(stored.data), facts.raw_bytes,
        facts.created_ms, expiry, _stored_checksum(facts, stored), stored.codec,
    )  # fmt: skip


def _stored_checksum(facts: Record, stored: Stored) -> int:
    """Return the checksum of what is stored, which is that of our own memory where it is raw."""
    if stored.codec != RAW_CODEC:
        return checksum(stored.data)
    if facts.checksum is None:
        facts.checksum = checksum(stored.data)
    return facts.checksum
