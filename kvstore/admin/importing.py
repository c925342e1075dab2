"""Storing what a file of blocks holds, after all of it was verified."""

from __future__ import annotations

from typing import BinaryIO

from xxhash import xxh3_64

from kvstore.admin.block_file import CHECKSUM_BYTES, Contents, Row, unpack
from kvstore.admin.index import OperatedIndex
from kvstore.admin.outcome import Imported, Stay, Why
from kvstore.admin.placement import OperatedPlacement
from kvstore.admin.progress import Progress
from kvstore.clock import Clock
from kvstore.errors import RequestError
from kvstore.manifests import Manifests
from kvstore.namespace import Namespace
from kvstore.record import FOREVER_MS, Record
from kvstore.storing import Storing

_PIECE_BYTES = 1 << 20
_A_FEW = 64
_WAIT_S = 10.0


class Importer:
    """Reads one file. Not thread-safe; blocks on the file, and on the media now and then."""

    def __init__(
        self, index: OperatedIndex, placement: OperatedPlacement, storing: Storing, manifests: Manifests,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._index = index
        self._placement = placement
        self._storing = storing
        self._manifests = manifests
        self._clock = clock
        self._num_stored = self._num_there = 0
        self._stays: list[Stay] = []

    def import_(self, file: BinaryIO, ttl_ms: int | None, progress: Progress) -> Imported:
        """Verify the file, then store its blocks, verified once more as they are copied."""
        contents = unpack(file)
        progress.begin(2 * len(contents.rows))
        blocks = list(zip(contents.rows, contents.starts, strict=True))
        for row, start in blocks:
            if progress.is_cancelled:
                return self._imported(contents, progress)
            _read(file, row, start, None)
            progress.step()
        for namespace in contents.namespaces:
            self._meet(namespace)
        for number, (row, start) in enumerate(blocks, start=1):
            if progress.is_cancelled:
                break
            self._store(file, row, start, contents.namespaces[row.namespace], ttl_ms)
            progress.step()
            if not number % _A_FEW or number == len(blocks):
                self._let_write()
        return self._imported(contents, progress)

    def _imported(self, contents: Contents, progress: Progress) -> Imported:
        digests = tuple(namespace.digest for namespace in contents.namespaces)
        is_cancelled = progress.done < 2 * len(contents.rows)
        return Imported(
            len(contents.rows), self._num_stored, self._num_there, tuple(self._stays), digests, is_cancelled
        )

    def _meet(self, namespace: Namespace) -> None:
        if moved := self._index.register(namespace):
            self._placement.rewrite_headers(moved)
        self._manifests.register(namespace)

    def _store(self, file: BinaryIO, row: Row, start: int, namespace: Namespace, ttl_ms: int | None) -> None:
        now_ms = self._clock.wall_ms()
        if 0 < row.hard_ms <= now_ms:
            self._stay(row, Why.ENDED)
        elif self._index.keeps_out(row.key, row.parent):
            self._stay(row, Why.QUARANTINED)
        else:
            self._store_living(file, row, start, namespace, ttl_ms, now_ms)

    def _store_living(
        self, file: BinaryIO, row: Row, start: int, namespace: Namespace, ttl_ms: int | None, now_ms: int
    ) -> None:
        facts = Record(
            row.key, row.parent, namespace.digest, row.block_tokens, row.nbytes, now_ms,
            first_token=row.first_token,
        )  # fmt: skip
        reservation = self._storing.reserve(facts, row.block_tokens, ttl_ms)
        if reservation is None:
            if any(self._index.peek([row.key], self._placement.bytes_mask, now_ms)):
                self._num_there += 1
            else:
                self._stay(row, Why.NO_ROOM)
            return
        facts.created_ms = min(row.created_ms or now_ms, now_ms)  # hard limits count from the first write
        facts.hard_ms = min(facts.hard_ms, row.hard_ms or FOREVER_MS)
        try:
            _read(file, row, start, reservation.view)
        except BaseException:
            reservation.abort()
            raise
        reservation.commit(int.from_bytes(row.checksum, "big"))
        self._num_stored += 1

    def _stay(self, row: Row, why: Why) -> None:
        self._stays.append(Stay(row.key, "", why, row.nbytes))

    def _let_write(self) -> None:
        """Let the tiers below catch up, so that their queues do not run over and drop what came."""
        for tier in self._placement.below_memory:
            tier.pool.flush(_WAIT_S)


def _read(file: BinaryIO, row: Row, start: int, out: memoryview | None) -> None:
    """Read a block, into ``out`` if that is given. Raises ``RequestError`` when its bytes are others."""
    file.seek(start)
    digest, done = xxh3_64(), 0
    while done < row.nbytes:
        piece = file.read(min(_PIECE_BYTES, row.nbytes - done))
        if not piece:
            break
        if out is not None:
            out[done : done + len(piece)] = piece
        digest.update(piece)
        done += len(piece)
    if done < row.nbytes or digest.intdigest().to_bytes(CHECKSUM_BYTES, "big") != row.checksum:
        raise RequestError("file", f"cannot be imported: block {row.key.hex()} does not match its checksum")
