"""Something that is done now and then, on a thread that no fault ends."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Thread
from weakref import WeakMethod

_log = logging.getLogger(__name__)


class Regularly:
    """Calls the method ``act`` every ``period_s``, until ``stop`` or until nobody has its object any more.

    What it raises is logged, the first time.
    """

    def __init__(self, name: str, period_s: float, act: Callable[[], None]) -> None:
        self._stopping = Event()
        job = WeakMethod(act), period_s, self._stopping
        self._thread = Thread(target=_run, args=job, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask it to end; does not wait."""
        self._stopping.set()


def _run(reference: WeakMethod[Callable[[], None]], period_s: float, stopping: Event) -> None:
    has_failed = False
    while not stopping.wait(period_s):
        act = reference()
        if act is None:
            return
        try:
            act()
        except Exception:  # noqa: BLE001  whatever it is, the next time may go well
            if not has_failed:
                _log.exception("%s failed; it is tried again", act.__qualname__)
            has_failed = True
        del act
