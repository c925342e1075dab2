"""The disk tier's journal: which blocks came and went, one fixed-size record each.

Little-endian, 232 bytes, the last 8 of them the xxh3 of those before::

    offset  bytes  field
         0      4  magic "PFXJ"
         4      1  kind: 1 put, 2 deleted
         5      3  zero
         8      8  payload bytes
        16     16  key
        32    192  frame header (zeros when deleted)
       224      8  xxh3-64 of bytes 0 to 223

A record that does not verify is passed over: the sweep finds its block, or a load misses it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections import OrderedDict
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

_MAGIC = b"PFXJ"
_BODY = struct.Struct("<4sB3xQ16s192s")
_SEAL = struct.Struct("<Q")
RECORD_BYTES = _BODY.size + _SEAL.size


class Kind(IntEnum):
    """What a record says happened to its block."""

    PUT = 1
    DELETED = 2


class Entry(NamedTuple):
    """A block on the disk: its packed header and the length of its payload."""

    header: bytes
    payload_bytes: int


Entries = OrderedDict[bytes, Entry]


def put_record(key: bytes, entry: Entry) -> bytes:
    """Return the record of a block that was put."""
    return _sealed(_BODY.pack(_MAGIC, Kind.PUT, entry.payload_bytes, key, entry.header))


def deleted_record(key: bytes) -> bytes:
    """Return the record of a block that went."""
    return _sealed(_BODY.pack(_MAGIC, Kind.DELETED, 0, key, b""))


def replay(data: bytes) -> Entries:
    """Return the blocks that a journal of ``data`` leaves, those of its latest records last."""
    entries: Entries = OrderedDict()
    for start in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
        body = data[start : start + _BODY.size]
        if _SEAL.unpack_from(data, start + _BODY.size)[0] != xxh3_64_intdigest(body):
            continue
        _, kind, payload_bytes, key, header = _BODY.unpack(body)
        entries.pop(key, None)
        if kind == Kind.PUT:
            entries[key] = Entry(header, payload_bytes)
    return entries


class JournalFile:
    """The file of records; one thread at a time. Methods raise ``OSError``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = 0

    def read(self) -> bytes:
        """Return all whole records; what follows them, cut short by a crash, is overwritten later."""
        data = self._path.read_bytes()
        self._end = len(data) // RECORD_BYTES * RECORD_BYTES
        return data[: self._end]

    def append(self, records: Iterable[bytes]) -> None:
        """Write ``records`` at the end; after an error the end is where it was."""
        self._end = _write(self._descriptor, b"".join(records), self._end)

    def replace(self, records: Iterable[bytes], temporary: Path) -> None:
        """Make ``records`` the whole journal, in one step, by way of the file ``temporary``."""
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            end = _write(descriptor, b"".join(records), 0)
            temporary.rename(self._path)
        except OSError:
            os.close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        os.close(self._descriptor)
        self._descriptor, self._end = descriptor, end

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)


def _sealed(body: bytes) -> bytes:
    return body + _SEAL.pack(xxh3_64_intdigest(body))


def _write(descriptor: int, data: bytes, offset: int) -> int:
    """Write all of ``data`` at ``offset`` and return where it ends."""
    if os.pwrite(descriptor, data, offset) != len(data):
        raise OSError(errno.ENOSPC, "the journal was cut short")
    return offset + len(data)
