"""What was served: a fact of each request that has ended, for whoever wants to learn from the traffic."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread

_log = logging.getLogger(__name__)

_MOST_WAITING = 1024


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """One request that has ended, by the keys of its blocks; it holds neither tokens, text nor secrets.

    ``at_ms`` is when it came (epoch milliseconds). ``keys`` are those of the prompt's whole blocks, as far as
    it was processed; ``answer_keys`` those of the blocks that the answer filled behind them. ``namespace`` is
    their namespace's digest, ``tenant`` the digest of its salt (empty: none). ``tokens_by_tier`` counts the
    prompt's tokens that each tier gave. ``stop`` is why the answer ended. Unless it ``reads``, nothing was
    looked up; unless it ``writes``, nothing was left behind. The rest is what the client said.
    """

    at_ms: int
    block_tokens: int
    keys: tuple[bytes, ...]
    input_tokens: int
    answer_keys: tuple[bytes, ...] = ()
    output_tokens: int = 0
    namespace: bytes = b""
    tenant: str = ""
    tokens_by_tier: Mapping[str, int] = field(default_factory=dict)
    stop: str = ""
    reads: bool = True
    writes: bool = True
    ttl_s: float | None = None
    session: str | None = None
    end_session: bool = False
    expected_pause_s: float | None = None


OnServed = Callable[[ServedPrompt], None]
"""Hears of each request that has ended; called on the thread that served it, so it must be quick."""


def _nothing() -> None:
    """Have nothing to do when idle."""


class ServedQueue:
    """Hands what was served to ``handle`` on a thread of its own; never blocks who tells of it.

    Of what comes faster than it is handled, at most ``most_waiting`` wait; the rest is dropped and counted.
    ``when_idle`` is called when all that came is handled. What either raises is logged, once, and counted.
    """

    def __init__(
        self,
        name: str,
        handle: OnServed,
        when_idle: Callable[[], None] = _nothing,
        most_waiting: int = _MOST_WAITING,
    ) -> None:
        self.num_dropped = 0
        self.num_failed = 0
        self._name = name
        self._handle = handle
        self._when_idle = when_idle
        self._most_waiting = most_waiting
        self._inbox: SimpleQueue[ServedPrompt | None] = SimpleQueue()
        self._lock = Lock()
        self._is_closed = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def __call__(self, served: ServedPrompt) -> None:
        """Tell of a request; never blocks."""
        if self._is_closed or self._inbox.qsize() >= self._most_waiting:
            self.num_dropped += 1
        else:
            self._inbox.put(served)

    def close(self, timeout_s: float = 5.0) -> bool:
        """Take nothing more and handle what waits; ``False``: that lasts longer than ``timeout_s``.

        Idempotent.
        """
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._inbox.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (served := self._inbox.get()) is not None:
            self._attempt(partial(self._handle, served))
            if self._inbox.empty():
                self._attempt(self._when_idle)

    def _attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception:  # noqa: BLE001 - whatever a subscriber raises, it must not end the others' hearing
            self.num_failed += 1
            if self.num_failed == 1:
                _log.exception("%s failed", self._name)
