"""Which blocks are on the disk, in order of use: kept in memory, journalled beside the blocks."""

from __future__ import annotations

from threading import Lock

from backends.disk_folder import DiskFolder
from backends.disk_frames import PAGE_BYTES, padded
from backends.disk_journal import RECORD_BYTES, Entry, JournalFile, deleted_record, put_record, replay
from kvstore.errors import InvariantError

MIN_DEAD_RECORDS = 4096


def file_bytes(payload_bytes: int) -> int:
    """Return the bytes of disk that a block's file takes."""
    return PAGE_BYTES + padded(payload_bytes)


class DiskIndex:
    """The blocks of a folder, least recently used first; thread-safe.

    A block is *arriving* while its file is put in place, *present* once it may be read, and
    *leaving* until its file is gone; it is charged while present or leaving. Records are queued
    under the lock and written outside of it by whichever thread finds nobody writing. A journal
    that cannot be written costs the sweep some work after a restart, and is counted.
    """

    def __init__(self, folder: DiskFolder) -> None:
        self._folder = folder
        self._journal = JournalFile(folder.journal)
        data = self._journal.read()
        self._present = replay(data)
        self._num_dead_records = len(data) // RECORD_BYTES - len(self._present)
        self._arriving: set[bytes] = set()
        self._leaving: dict[bytes, int] = {}
        self._occupied_bytes = sum(file_bytes(entry.payload_bytes) for entry in self._present.values())
        self._queue: list[bytes] = []
        self.num_lost_records = 0
        self._lock = Lock()  # held for bookkeeping only
        self._writing = Lock()  # held while the journal is written; only ``close`` waits for it

    @property
    def occupied_bytes(self) -> int:
        """Bytes of all files that are present or leaving."""
        return self._occupied_bytes

    @property
    def num_leaving(self) -> int:
        """Blocks whose file is being removed, or could not be."""
        return len(self._leaving)

    def __len__(self) -> int:
        return len(self._present)

    def entries(self) -> list[tuple[bytes, Entry]]:
        """Return what is present, by key, least recently used first."""
        with self._lock:
            return list(self._present.items())

    def use(self, key: bytes) -> Entry | None:
        """Return what is present under ``key``, now the most recently used, or ``None``."""
        with self._lock:
            entry = self._present.get(key)
            if entry:
                self._present.move_to_end(key)
            return entry

    def entry(self, key: bytes) -> Entry | None:
        """Return what is present under ``key``, or ``None``; no use of it."""
        with self._lock:
            return self._present.get(key)

    def is_known(self, key: bytes) -> bool:
        """Tell whether ``key`` is arriving, present or leaving."""
        with self._lock:
            return self._knows(key)

    def arrive(self, key: bytes) -> None:
        """Note that a file of ``key`` is about to be put in place."""
        with self._lock:
            self._arriving.add(key)

    def add(self, key: bytes, entry: Entry) -> None:
        """Note that the file of ``key`` is in place, instead of any before it."""
        with self._lock:
            self._arriving.discard(key)
            self._discharge(key)
            self._charge(key, entry)
        self._write_queue()

    def adopt(self, key: bytes, entry: Entry) -> bool:
        """Add a file found on the disk as least recently used, unless its key is known."""
        with self._lock:
            if self._knows(key):
                return False
            self._charge(key, entry)
            self._present.move_to_end(key, last=False)
        self._write_queue()
        return True

    def amend(self, key: bytes, entry: Entry, header: bytes) -> bool:
        """Note that the file of ``entry`` has another header now; ``False``: it is another file by now."""
        with self._lock:
            if self._present.get(key) is not entry:
                return False
            if header != entry.header:
                self._present[key] = Entry(header, entry.payload_bytes)
                self._queue.append(put_record(key, self._present[key]))
                self._num_dead_records += 1
        self._write_queue()
        return True

    def leave(self, key: bytes) -> bool:
        """Note that the file of ``key`` is about to be removed; ``False`` when there is none."""
        with self._lock:
            self._arriving.discard(key)
            entry = self._present.pop(key, None)
            if entry:
                self._leaving[key] = file_bytes(entry.payload_bytes)
                self._queue.append(deleted_record(key))
                self._num_dead_records += 2  # its put and this
            is_there = key in self._leaving
        self._write_queue()
        return is_there

    def gone(self, key: bytes) -> None:
        """Note that the file of a leaving ``key`` is removed."""
        with self._lock:
            self._occupied_bytes -= self._leaving.pop(key, 0)

    def missing(self, key: bytes, entry: Entry) -> None:
        """Note that the file of ``entry`` is not there, unless another has come meanwhile."""
        with self._lock:
            if self._present.get(key) is not entry:
                return
            self._discharge(key)
            self._queue.append(deleted_record(key))
            self._num_dead_records += 1
        self._write_queue()

    def close(self) -> None:
        """Write the journal anew, in order of use, and let go of it; nothing is called after this."""
        with self._writing:
            with self._lock:
                queue, self._queue = self._queue, []
            self._append(queue)
            self._compact()
            self._journal.close()

    def check(self) -> None:
        """Raise ``InvariantError`` when the bytes charged are not those of the files."""
        with self._lock:
            present = sum(file_bytes(entry.payload_bytes) for entry in self._present.values())
            if self._occupied_bytes != present + sum(self._leaving.values()):
                raise InvariantError("disk: the bytes charged are not those of the files")
            if self._present.keys() & self._leaving.keys():
                raise InvariantError("disk: a block is both present and leaving")

    def _knows(self, key: bytes) -> bool:
        return key in self._present or key in self._leaving or key in self._arriving

    def _charge(self, key: bytes, entry: Entry) -> None:
        self._present[key] = entry
        self._occupied_bytes += file_bytes(entry.payload_bytes)
        self._queue.append(put_record(key, entry))

    def _discharge(self, key: bytes) -> None:
        if before := self._present.pop(key, None):
            self._occupied_bytes -= file_bytes(before.payload_bytes)
            self._num_dead_records += 1
        self._occupied_bytes -= self._leaving.pop(key, 0)

    def _write_queue(self) -> None:
        while self._queue and self._writing.acquire(blocking=False):
            try:
                self._write_some()
            finally:
                self._writing.release()

    def _write_some(self) -> None:
        with self._lock:
            queue, self._queue = self._queue, []
            mostly_dead = self._num_dead_records > max(MIN_DEAD_RECORDS, len(self._present))
        if not (mostly_dead and self._compact()):
            self._append(queue)

    def _append(self, records: list[bytes]) -> None:
        try:
            self._journal.append(records)
        except OSError:
            self.num_lost_records += len(records)

    def _compact(self) -> bool:
        """Write what is present as the whole journal; ``False`` when the disk does not take it.

        Records queued from here on come after it, and may say once more what it says already.
        """
        with self._lock:
            present = list(self._present.items())
            self._num_dead_records = 0
        records = (put_record(key, entry) for key, entry in present)
        try:
            self._journal.replace(records, self._folder.temporary())
        except OSError:
            return False
        return True
