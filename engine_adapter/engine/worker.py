"""One thread that works in turns, and the queue through which all others talk to it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread, current_thread
from typing import Protocol

from kvstore.errors import EngineClosedError

_log = logging.getLogger(__name__)

_LONGEST_WAIT_S = 60.0

Message = Callable[[], object]
"""Something to do between two turns."""


class Turns(Protocol):
    """What the thread does."""

    def turn(self) -> bool:
        """Do what can be done now; ``False`` when there was nothing, so that it is time to wait."""
        ...

    def idle_s(self) -> float | None:
        """Return how long to wait for the first thing that is due; ``None``: nothing is."""
        ...

    def end(self, failure: str) -> None:
        """Answer everybody who still waits for something; ``failure`` is why a turn broke, if one did."""
        ...


class Worker:
    """Makes turns until it is closed or one of them raises. Thread-safe, but for ``start``."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._inbox: SimpleQueue[Message] = SimpleQueue()
        self._lock = Lock()
        self._refusal = ""
        self._failure = ""
        self._thread: Thread | None = None

    def start(self, turns: Turns) -> None:
        """Begin to work; once."""
        self._thread = Thread(target=self._run, args=(turns,), name=self._name, daemon=True)
        self._thread.start()

    @property
    def trouble(self) -> str:
        """Why there will be no more turns; empty while there are."""
        is_dead = self._thread is None or not self._thread.is_alive()
        return self._failure or self._refusal or (f"the {self._name}'s thread has ended" if is_dead else "")

    def wake(self) -> None:
        """End a wait; never blocks."""
        self._inbox.put(_nothing)

    def tell(self, message: Message) -> None:
        """Let ``message`` be handled if there are turns still; never blocks."""
        self._inbox.put(message)

    def send(self, message: Message) -> None:
        """Let ``message`` be handled for sure; never blocks. Raises ``EngineClosedError``."""
        with self._lock:
            if self._refusal or self._thread is None:
                raise EngineClosedError(self._refusal or "it has not begun")
            self._inbox.put(message)

    def call(self, action: Callable[[], None]) -> None:
        """Run ``action`` on the thread and block until it is done; raises what it raises.

        Raises ``EngineClosedError``.
        """
        done: Future[None] = Future()
        message = partial(_run_into, done, action)
        if current_thread() is self._thread:
            message()
        else:
            self.send(message)
        done.result()

    def close(self, deadline_s: float) -> bool:
        """Make no more turns; returns within ``deadline_s``, ``False`` if the last one lasts longer.

        On the thread itself it does not wait. Idempotent.
        """
        with self._lock:
            self._refusal = self._refusal or "it is closed"
        self.wake()
        if self._thread is None:
            return True
        if self._thread is current_thread():
            return False
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _run(self, turns: Turns) -> None:
        try:
            while not self._refusal:
                has_moved = turns.turn()
                self._handle_messages(None if has_moved else turns)
        except BaseException as error:  # noqa: BLE001 - whoever asks hears of it
            _log.exception("the %s's thread broke", self._name)
            self._failure = f"its loop broke: {error}"
        finally:
            with self._lock:
                self._refusal = self._failure or self._refusal
            self._answer_the_last()
            turns.end(self._failure)

    def _handle_messages(self, idle: Turns | None) -> None:
        """Do what others ask; when ``idle``, wait for a message or the next thing that is due."""
        try:
            if idle is not None:
                due_s = idle.idle_s()
                self._inbox.get(timeout=None if due_s is None else min(due_s, _LONGEST_WAIT_S))()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            return

    def _answer_the_last(self) -> None:
        """Handle every message that is left, whatever one of them raises: somebody may wait for it."""
        while not self._inbox.empty():
            try:
                self._inbox.get_nowait()()
            except BaseException:  # noqa: BLE001 - likewise
                _log.exception("the %s's thread broke", self._name)


def _run_into(done: Future[None], action: Callable[[], None]) -> None:
    try:
        action()
    except BaseException as error:  # noqa: BLE001 - it is raised where the action was asked for
        done.set_exception(error)
    else:
        done.set_result(None)


def _nothing() -> None:
    """Wake the thread."""
