"""A tier's line, simulated: what it is asked for arrives after a latency, at a rate, maybe in clumps."""

from __future__ import annotations

from dataclasses import dataclass, field

from policies.lines import Arrival, Line

BLOCK_BYTES = 1_000_000


@dataclass
class SimulatedLine:
    """One block takes the line for ``block_s``; ``num_readers`` blocks report at the same moment.

    ``late_s`` adds to single blocks, by their number.
    """

    latency_s: float
    block_s: float
    num_readers: int = 1
    late_s: dict[int, float] = field(default_factory=dict)
    now_s: float = 100.0
    num_asked: int = 0
    free_at_s: float = 0.0

    @property
    def bytes_per_s(self) -> float:
        return BLOCK_BYTES / self.block_s

    def burst(self, line: Line, num_blocks: int, window: int = 0, pause_s: float = 1.0) -> None:
        """Load blocks, ``window`` of them on their way at a time (0: enough), and let time pass."""
        window = window or 8 + round(2 * self.latency_s / self.block_s)
        on_way: list[tuple[float, float, int]] = []
        num_left = num_blocks
        while num_left or on_way:
            while num_left and len(on_way) < window:
                on_way.append(self._ask(line))
                num_left -= 1
            clump = sorted(on_way)[: self.num_readers]
            self.now_s = max(self.now_s, clump[-1][0])
            for report in clump:
                on_way.remove(report)
                line.ended(report[2])
            line.learn(Arrival(asked_s, self.now_s, BLOCK_BYTES) for _, asked_s, _ in clump)
        self.now_s += pause_s

    def _ask(self, line: Line) -> tuple[float, float, int]:
        """Ask for a block; returns when it arrives, when it was asked for, and its number."""
        number = self.num_asked
        self.num_asked += 1
        line.asked(number, BLOCK_BYTES, self.now_s)
        began_s = max(self.free_at_s, self.now_s)
        self.free_at_s = began_s + self.block_s + self.late_s.get(number, 0.0)
        return self.free_at_s + self.latency_s, self.now_s, number
