"""Files of blocks in the format of safetensors, which others can read; written and read without its library.

Eight bytes with the length of a JSON header, little-endian; the header, filled up with spaces; then the
blocks, one behind the other, each a tensor named by its key in hex. What only we need is text in
``__metadata__``:

- ``format`` and ``version``: these files, and how they are written
- ``namespaces``: the manifests, a JSON list
- ``blocks``: a JSON list, in the order of the bytes, of objects with the fields of ``Row``, bytes in hex
- ``digest``: blake2b over those two

The library writes all tensors at once from memory; a prefix may be larger than that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple, NoReturn

from kvstore.admin.shapes import shape_of
from kvstore.errors import RequestError
from kvstore.keys import KEY_BYTES
from kvstore.manifests import MAX_KNOWN
from kvstore.namespace import Namespace

FORMAT = "prefixd-blocks"
VERSION = "1"
MOST_HEADER_BYTES = 100_000_000
"""As the library has it."""

CHECKSUM_BYTES = 8
_LENGTH_BYTES = 8
_MOST = 1 << 48


class Row(NamedTuple):
    """What a file says of one block beside its bytes; times are epoch milliseconds, 0: no hard end.

    ``namespace`` is the number of its manifest in the file. ``parent`` is empty at the start of a prompt.
    ``checksum`` is the xxh3 of its bytes, big-endian.
    """

    key: bytes
    parent: bytes
    namespace: int
    block_tokens: int
    first_token: int | None
    created_ms: int
    hard_ms: int
    nbytes: int
    checksum: bytes


@dataclass(frozen=True)
class Contents:
    """The header of a file of blocks; ``starts`` are where in the file each row's bytes begin."""

    namespaces: tuple[Namespace, ...]
    rows: tuple[Row, ...]
    digest: str
    starts: tuple[int, ...] = ()


def pack(namespaces: Sequence[Namespace], rows: Sequence[Row], *, nbytes: int = 0) -> tuple[bytes, str]:
    """Return the beginning of a file, up to its first block, and its digest in hex.

    It has ``nbytes``, if that is more than it takes. Raises ``RequestError`` for more blocks than a file
    holds.
    """
    metadata = _metadata(namespaces, rows)
    header: dict[str, Any] = {"__metadata__": metadata}
    for row, entry in zip(rows, _entries(namespaces, rows), strict=True):
        header[row.key.hex()] = entry
    text = json.dumps(header, separators=(",", ":")).encode()
    length = max(len(text) + -(len(text) + _LENGTH_BYTES) % 8, nbytes - _LENGTH_BYTES)
    if length > MOST_HEADER_BYTES:
        raise RequestError("selection", f"{len(rows)} blocks are more than one file holds: select fewer")
    return length.to_bytes(_LENGTH_BYTES, "little") + text.ljust(length), metadata["digest"]


def unpack(file: BinaryIO) -> Contents:
    """Read the header of a file of blocks, which can seek, and check it against the file's length.

    Raises ``RequestError`` for one of another version or kind, or in which something does not fit the rest.
    """
    file_bytes = file.seek(0, 2)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    if not 2 <= length <= min(MOST_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
        _refuse("it does not begin as a safetensors file does, or is cut short")
    header = _parsed(file.read(length), "its header")
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        _refuse("it holds other tensors than blocks that were exported here")
    if metadata.get("version") != VERSION:
        _refuse(f"it is of version {metadata.get('version')!r:.20}; this is version {VERSION}")
    namespaces = _namespaces(metadata.get("namespaces"))
    rows = _rows(metadata.get("blocks"), namespaces)
    if metadata != _metadata(namespaces, rows):
        _refuse("its digest does not match what it says of its blocks")
    entries = _entries(namespaces, rows)
    if header != {row.key.hex(): entry for row, entry in zip(rows, entries, strict=True)}:
        _refuse("its tensors are others than it says")
    begin = _LENGTH_BYTES + length
    if file_bytes != begin + sum(row.nbytes for row in rows):
        _refuse("its length is another than that of its blocks")
    starts = tuple(begin + entry["data_offsets"][0] for entry in entries)
    return Contents(namespaces, rows, metadata["digest"], starts)


def _metadata(namespaces: Sequence[Namespace], rows: Sequence[Row]) -> dict[str, str]:
    manifests = json.dumps([json.loads(namespace.manifest()) for namespace in namespaces], sort_keys=True)
    blocks = json.dumps([_as_json(row) for row in rows], separators=(",", ":"))
    digest = blake2b(f"{manifests}\n{blocks}".encode(), digest_size=32).hexdigest()
    return {
        "format": FORMAT, "version": VERSION, "namespaces": manifests, "blocks": blocks, "digest": digest,
    }  # fmt: skip


def _as_json(row: Row) -> dict[str, Any]:
    return {name: told.hex() if isinstance(told, bytes) else told for name, told in row._asdict().items()}


def _entries(namespaces: Sequence[Namespace], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return how safetensors describes each block."""
    entries, start = list[dict[str, Any]](), 0
    for row in rows:
        shape = shape_of(namespaces[row.namespace], row.nbytes)
        end = start + row.nbytes
        entries.append({"dtype": shape.dtype, "shape": list(shape.dimensions), "data_offsets": [start, end]})
        start = end
    return entries


def _namespaces(text: object) -> tuple[Namespace, ...]:
    manifests = _listed(text, "its namespaces")
    if len(manifests) > MAX_KNOWN:
        _refuse(f"it has more than {MAX_KNOWN} namespaces")
    try:
        return tuple(Namespace.from_manifest(json.dumps(manifest)) for manifest in manifests)
    except ValueError as error:
        _refuse(f"one of its namespaces cannot be read: {error}")


def _rows(text: object, namespaces: Sequence[Namespace]) -> tuple[Row, ...]:
    rows = tuple(_row(each, namespaces) for each in _listed(text, "its list of blocks"))
    if len({row.key for row in rows}) < len(rows):
        _refuse("a block is in it twice")
    return rows


def _row(told: object, namespaces: Sequence[Namespace]) -> Row:
    """Return what is told of a block, if all of it can be."""
    if not isinstance(told, dict) or told.keys() != set(Row._fields):
        _refuse("what it says of a block has other fields")
    row = Row(**{name: _field(name, value) for name, value in told.items()})
    if row.namespace >= len(namespaces) or row.block_tokens != namespaces[row.namespace].block_tokens:
        _refuse("a block is of no namespace that it names")
    if (len(row.key), len(row.checksum)) != (KEY_BYTES, CHECKSUM_BYTES) or len(row.parent) not in {
        0,
        KEY_BYTES,
    }:
        _refuse("a key or checksum has another length")
    if not row.nbytes:
        _refuse("a block has no bytes")
    return row


def _field(name: str, told: object) -> Any:
    if name in {"key", "parent", "checksum"}:
        try:
            return bytes.fromhex(told) if isinstance(told, str) else _refuse(f"{name} is no text")
        except ValueError:
            _refuse(f"{name} is not hexadecimal")
    if name == "first_token" and told is None:
        return None
    if type(told) is not int or not 0 <= told < _MOST:
        _refuse(f"{name} is no number that can be")
    return told


def _listed(text: object, what: str) -> list[Any]:
    listed = _parsed(text, what) if isinstance(text, str) else None
    return listed if isinstance(listed, list) else _refuse(f"{what} is no list")


def _parsed(text: bytes | str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        _refuse(f"{what} cannot be read as JSON")


def _refuse(reason: str) -> NoReturn:
    raise RequestError("file", f"cannot be imported: {reason}")
