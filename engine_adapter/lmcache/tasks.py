"""Tasks that LMCache submits: done in parts by threads of our own, told through a notifier when whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from threading import Lock
from typing import Generic, TypeVar

Part = TypeVar("Part")
Done = TypeVar("Done")
Told = TypeVar("Told")


class Tasks(Generic[Told]):
    """Runs tasks and keeps what they told until it is asked for. Thread-safe.

    ``notify`` is called when a task is done, on the thread that has done its last part. After ``close`` a
    task is done at once, with none of its parts.
    """

    def __init__(self, name: str, num_workers: int, notify: Callable[[], None]) -> None:
        self._workers = ThreadPoolExecutor(num_workers, thread_name_prefix=f"prefixd-{name}")
        self._num_workers = num_workers
        self._notify = notify
        self._numbers = count(1)
        self._told: dict[int, Told] = {}
        self._under_way: set[Future[None]] = set()
        self._is_closed = False
        self._lock = Lock()

    def submit(
        self,
        parts: Sequence[Part],
        do: Callable[[Part], Done],
        otherwise: Done,
        tell: Callable[[Sequence[Done]], Told],
        most_workers: int | None = None,
    ) -> int:
        """Do ``do`` to each part, and ``tell`` of all of them; returns the task's number, never blocks.

        Neither may raise. A part that is not done any more counts as ``otherwise``.
        """
        number = next(self._numbers)
        task = _Task(parts, do, otherwise, lambda done: self._finish(number, tell(done)), self._is_over)
        with self._lock:
            num_threads = (
                0
                if self._is_closed
                else min(most_workers or self._num_workers, self._num_workers, len(parts))
            )
            futures = [self._workers.submit(task.work) for _ in range(num_threads)]
            self._under_way.update(futures)
        for future in futures:
            future.add_done_callback(self._under_way.discard)
        if not futures:
            task.give_up()
        return number

    def take(self, number: int) -> Told | None:
        """Return what a task told, once; ``None``: it is not done, or was asked before."""
        with self._lock:
            return self._told.pop(number, None)

    def take_all(self) -> dict[int, Told]:
        """Return what all that are done told, once each."""
        with self._lock:
            told, self._told = self._told, {}
        return told

    def close(self, deadline_s: float) -> bool:
        """Begin no more parts, and wait for those begun; says whether all have ended in time."""
        with self._lock:
            self._is_closed = True
            under_way = set(self._under_way)
        self._workers.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in under_way if not future.cancelled()]
        return not wait(begun, max(0.0, deadline_s)).not_done

    @property
    def num_under_way(self) -> int:
        """How many threads are at work or wait for their turn."""
        return len(self._under_way)

    def _is_over(self) -> bool:
        return self._is_closed

    def _finish(self, number: int, told: Told) -> None:
        with self._lock:
            self._told[number] = told
        self._notify()


class _Task(Generic[Part, Done]):
    """Parts that any number of threads may take, one after the other; whoever does the last one finishes."""

    def __init__(
        self,
        parts: Sequence[Part],
        do: Callable[[Part], Done],
        otherwise: Done,
        finish: Callable[[Sequence[Done]], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._parts = parts
        self._do = do
        self._done = [otherwise] * len(parts)
        self._finish = finish
        self._is_over = is_over
        self._next = count()
        self._num_left = len(parts)
        self._lock = Lock()

    def work(self) -> None:
        """Do parts until none is left, or all is over."""
        while not self._is_over() and (index := next(self._next)) < len(self._parts):
            self._done[index] = self._do(self._parts[index])
            with self._lock:
                self._num_left -= 1
                is_last = self._num_left == 0
            if is_last:
                self._finish(self._done)

    def give_up(self) -> None:
        """Finish without doing anything."""
        self._finish(self._done)
