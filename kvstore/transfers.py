"""The threads that move bytes to and from one tier: bounded queues, reads apart from writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

Job = Callable[[], None]


class TransferPool:
    """Reader threads and one writer thread, started with the first job. Thread-safe.

    A job must catch its own faults; one that raises all the same is counted in ``num_lost`` and
    its thread goes on. A job that never returns costs its thread, not the callers': they wait
    with deadlines.
    """

    def __init__(self, name: str, *, num_readers: int, max_queued_reads: int, max_queued_writes: int) -> None:
        self._name = name
        self._num_readers = num_readers
        self._max_reads = max_queued_reads
        self._max_writes = max_queued_writes
        self._reads: deque[Job] = deque()
        self._writes: deque[Job] = deque()
        self._changed = Condition()
        self._threads: list[Thread] = []
        self._num_active_writes = 0
        self._closing = False
        self.num_lost = 0

    def read(self, job: Job) -> bool:
        """Queue a read; ``False`` when the queue is full or the pool is closing."""
        return self._put(self._reads, job, self._max_reads)

    def ask(self, job: Job) -> bool:
        """Queue a short question ahead of the reads; ``False`` as for them."""
        return self._put(self._reads, job, self._max_reads, is_first=True)

    def write(self, job: Job) -> bool:
        """Queue a write; ``False`` when the queue is full or the pool is closing."""
        return self._put(self._writes, job, self._max_writes)

    def delete(self, job: Job) -> bool:
        """Queue a deletion behind the writes; never refused for a full queue."""
        return self._put(self._writes, job, None)

    def is_alive(self) -> bool:
        """Say whether every thread that was started still runs."""
        return all(thread.is_alive() for thread in self._threads)

    def flush(self, timeout_s: float) -> bool:
        """Block until all queued writes are done, at most ``timeout_s``; says whether they are."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._writes and not self._num_active_writes, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Finish queued writes, drop queued reads, stop; says whether all threads ended in time."""
        ends_at = time.monotonic() + timeout_s
        self.flush(timeout_s)
        with self._changed:
            self._closing = True
            dropped = [*self._reads, *self._writes]
            self._reads.clear()
            self._writes.clear()
            self._changed.notify_all()
        for job in dropped:
            self._run(job)
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def is_closing(self) -> bool:
        """Whether jobs should give up instead of moving bytes."""
        return self._closing

    def _put(self, queue: deque[Job], job: Job, limit: int | None, *, is_first: bool = False) -> bool:
        with self._changed:
            if self._closing or (limit is not None and len(queue) >= limit):
                return False
            if is_first:
                queue.appendleft(job)
            else:
                queue.append(job)
            if not self._threads:
                self._start()
            self._changed.notify_all()
            return True

    def _start(self) -> None:
        work = [("read", self._serve_reads)] * self._num_readers + [("write", self._serve_writes)]
        for what, serve in work:
            thread = Thread(target=serve, name=f"{self._name}-{what}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve_reads(self) -> None:
        while (job := self._next(self._reads)) is not None:
            self._run(job)

    def _serve_writes(self) -> None:
        while (job := self._next(self._writes)) is not None:
            try:
                self._run(job)
            finally:
                with self._changed:
                    self._num_active_writes -= 1
                    self._changed.notify_all()

    def _next(self, queue: deque[Job]) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: queue or self._closing)
            if not queue:
                return None
            if queue is self._writes:
                self._num_active_writes += 1
            return queue.popleft()

    def _run(self, job: Job) -> None:
        try:
            job()
        except Exception:  # noqa: BLE001  the thread must outlive any job
            self.num_lost += 1
