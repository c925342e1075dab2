"""How far a long operation has come, for whoever watches it and may call it off."""

from __future__ import annotations


class Progress:
    """``done`` of ``total`` steps; nothing of it blocks. One thread counts, any thread reads or cancels."""

    def __init__(self) -> None:
        self.done = 0
        self.total = 0
        self.is_cancelled = False

    def begin(self, total: int) -> None:
        """Note how many steps there are to do."""
        self.done, self.total = 0, total

    def step(self) -> None:
        """Note that one more is done."""
        self.done += 1

    def cancel(self) -> None:
        """Ask to stop before the next step: what is done stays done."""
        self.is_cancelled = True
