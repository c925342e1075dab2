"""Keeps what was learnt of costs while vLLM runs: whoever stops its server has its engine killed."""

from __future__ import annotations

from threading import Thread

from engine_adapter.cost_file import CostFile
from engine_adapter.engine.costs import CostBook

_BETWEEN_S = 60.0
_CLOSE_S = 1.0


class CostKeeper:
    """Writes costs to their file once a minute, on a thread of its own. For the scheduler's thread alone."""

    def __init__(self, costs: CostBook, file: CostFile, now_s: float) -> None:
        self._costs = costs
        self._file = file
        self._kept_s = now_s
        self._writing: Thread | None = None

    def keep(self, now_s: float) -> None:
        """Begin to write what is known, if it is time."""
        is_writing = self._writing is not None and self._writing.is_alive()
        if now_s - self._kept_s < _BETWEEN_S or is_writing:
            return
        self._kept_s = now_s
        known = self._costs.known()
        self._writing = Thread(target=self._file.write, args=(known,), name="prefixd-costs", daemon=True)
        self._writing.start()

    def close(self) -> None:
        """Write what is known now."""
        if self._writing is not None:
            self._writing.join(_CLOSE_S)
        self._file.write(self._costs.known())
