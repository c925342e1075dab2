"""Writing blocks to a file, one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import BinaryIO, NamedTuple

from kvstore.admin.block_file import CHECKSUM_BYTES, Row, pack
from kvstore.admin.copy_reader import CopyReader
from kvstore.admin.index import OperatedIndex
from kvstore.admin.names import Names
from kvstore.admin.outcome import Exported, Stay, Why
from kvstore.admin.progress import Progress
from kvstore.admin.shapes import shape_of
from kvstore.clock import Clock
from kvstore.errors import RequestError
from kvstore.frame import checksum
from kvstore.namespace import Namespace
from kvstore.record import Record
from kvstore.tier import Tier


class _Chosen(NamedTuple):
    """A block to write: what the file says of it, and the digest of its namespace."""

    row: Row
    namespace: bytes


class Exporter:
    """Writes one file; what goes before its turn is left out. Not thread-safe; blocks on the media."""

    def __init__(
        self, tiers: Sequence[Tier], index: OperatedIndex, copies: CopyReader, names: Names, clock: Clock
    ) -> None:
        self._tiers = tuple(tiers)
        self._index = index
        self._copies = copies
        self._names = names
        self._clock = clock
        self._stays: list[Stay] = []

    def export(
        self, keys: Sequence[bytes], absent: Iterable[Stay], file: BinaryIO, progress: Progress
    ) -> Exported:
        """Write these blocks, in this order but for larger numbers before smaller ones.

        Place is left for a header that names them all; it is written in the end. After an error, or when it
        is called off, the file is empty.
        """
        self._stays = list(absent)
        namespaces, chosen = self._choose(keys)
        progress.begin(len(chosen))
        rows: list[Row] = []
        digest = ""
        try:
            digest = self._fill(file, namespaces, chosen, rows, progress)
        finally:
            if not digest:
                file.seek(0)
                file.truncate()
        if not digest:
            return Exported(0, 0, "", tuple(self._stays), is_cancelled=True)
        return Exported(len(rows), sum(row.nbytes for row in rows), digest, tuple(self._stays))

    def _fill(
        self, file: BinaryIO, namespaces: Sequence[Namespace], chosen: Sequence[_Chosen], rows: list[Row],
        progress: Progress,
    ) -> str:  # fmt: skip
        """Write all of the file, and note the rows of what is in it; returns its digest, or nothing."""
        head, _ = pack(namespaces, [each.row for each in chosen])
        file.seek(len(head))
        if not self._write(chosen, rows, file, progress):
            return ""
        self._refuse_nothing(rows)
        file.truncate()  # there may have been more in it
        head, digest = pack(namespaces, rows, nbytes=len(head))
        file.seek(0)
        file.write(head)
        return digest

    def _refuse_nothing(self, rows: Sequence[Row]) -> None:
        """Raise ``RequestError`` when there is no block to write: a file of none would hide a mistake."""
        if not rows:
            reasons = Counter(stay.why.value for stay in self._stays)
            told = ", ".join(f"{num} {why}" for why, num in reasons.items()) or "no block is selected"
            raise RequestError("selection", f"names no block that can be exported: {told}")

    def _choose(self, keys: Sequence[bytes]) -> tuple[list[Namespace], list[_Chosen]]:
        """Return the blocks that can be written, and the namespaces that their rows name by number."""
        found = self._index.survey(self._look, keys)
        known = self._names.of({each.namespace for each in found})
        for each in found:
            if each.namespace not in known:
                self._stays.append(Stay(each.row.key, "", Why.STRANGER, each.row.nbytes))
        digests = sorted({each.namespace for each in found} & known.keys())
        numbers = {digest: number for number, digest in enumerate(digests)}
        chosen = [
            _Chosen(each.row._replace(namespace=numbers[each.namespace]), each.namespace)
            for each in found
            if each.namespace in numbers
        ]
        # So that each tensor begins where its numbers may lie.
        chosen.sort(key=lambda each: -shape_of(known[each.namespace], each.row.nbytes).number_bytes)
        return [known[digest] for digest in digests], chosen

    def _look(self, record: Record) -> _Chosen | None:
        living, _ = self._index.alive_in(record, self._clock.wall_ms())
        if not living & sum(1 << tier.bit for tier in self._tiers):
            self._stays.append(Stay(record.key, "", Why.NOT_THERE, record.raw_bytes))
            return None
        row = Row(
            record.key, record.parent, 0, record.block_tokens, record.first_token, record.created_ms,
            self._index.hard_end(record) or 0, record.raw_bytes, bytes(CHECKSUM_BYTES),
        )  # fmt: skip
        return _Chosen(row, record.namespace)

    def _write(self, chosen: Sequence[_Chosen], rows: list[Row], file: BinaryIO, progress: Progress) -> bool:
        """Write the bytes of all blocks; ``rows`` are those that were there. ``False``: called off."""
        for row, namespace in chosen:
            if progress.is_cancelled:
                return False
            written = self._write_one(row, namespace, file)
            if isinstance(written, Row):
                rows.append(written)
            else:
                self._stays.append(Stay(row.key, "", written, row.nbytes))
            progress.step()
        return True

    def _write_one(self, row: Row, namespace: bytes, file: BinaryIO) -> Row | Why:
        """Write one block from the fastest tier that has it whole."""
        why = Why.NOT_THERE
        for tier in self._tiers:
            held = self._index.hold(row.key, tier.bit, self._clock.wall_ms()) if tier.is_readable() else None
            if held is None:
                continue
            try:
                landed = held.copy()
                if (landed.raw_bytes, landed.namespace) == (row.nbytes, namespace):
                    written = self._copies.read(tier, landed, lambda data: _written(data, file))
                    if isinstance(written, bytes):
                        return row._replace(checksum=written)
                why = Why.FAILED
            finally:
                self._index.unhold([held])
        return why


def _written(data: memoryview, file: BinaryIO) -> bytes:
    """Write a block and return its checksum, as a row has it."""
    file.write(data)
    return checksum(data).to_bytes(CHECKSUM_BYTES, "big")
