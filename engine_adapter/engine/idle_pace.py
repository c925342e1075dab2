"""How much of its idle time the engine's thread may spend on what nobody waits for."""

from __future__ import annotations

_QUIET_S = 0.25
_MOST_SAVED_S = 0.05


class IdlePace:
    """Lets work be done for a ``share`` of the idle time, after a moment without requests.

    ::

        requests  ██████          ████
        idle            ─────────     ──────────────────────
        work                ▌   ▌         ▌   ▌   ▌   ▌      each rests for what it took over the share

    What was not used is saved up to a little, so that a long idle time is no right to a long burst. Not
    thread-safe, but for ``share``, which may be set at any time, and what it reads.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.idle_s = 0.0
        self.spent_s = 0.0
        self._saved_s = 0.0
        self._quiet_from_s: float | None = None
        self._seen_s = 0.0

    def note(self, now_s: float, *, is_idle: bool) -> None:
        """Note whether there is anything else to do: it was idle up to now if it was before."""
        if self._quiet_from_s is not None:
            passed_s = now_s - self._seen_s
            self.idle_s += passed_s
            self._saved_s = min(_MOST_SAVED_S, self._saved_s + self.share * passed_s)
        self._seen_s = now_s
        if not is_idle:
            self._quiet_from_s = None
        elif self._quiet_from_s is None:
            self._quiet_from_s = now_s

    def spend(self, took_s: float) -> None:
        """Note that work took so long."""
        self.spent_s += took_s
        self._saved_s -= took_s

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing else to do when it was noted last."""
        return self._quiet_from_s is not None

    def due_s(self) -> float | None:
        """Return when work may be done, while it stays idle; ``None``: not as things are."""
        if self._quiet_from_s is None or self.share <= 0:
            return None
        rested_s = self._seen_s + max(0.0, -self._saved_s) / self.share
        return max(self._quiet_from_s + _QUIET_S, rested_s)
