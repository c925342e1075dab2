"""What a part of the benchmark has found: figures for the JSON, rows for the table, faults."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.on_gpu.served import Bench


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table; ``mark`` is what ``value`` should reach, ``is_met`` whether it does."""

    what: str
    value: str
    mark: str = ""
    is_met: bool | None = None


@dataclass
class Findings:
    """What one part found. ``faults`` are wrong results; a mark of speed that is missed is none."""

    figures: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def tell(self, what: str, value: str) -> None:
        """Add a line to the table."""
        self.rows.append(Row(what, value))

    def mark(self, what: str, value: float, least: float) -> None:
        """Add a line with a mark: ``value`` should be at least ``least``."""
        self.rows.append(Row(what, f"{value:.2f}", f">= {least:g}", value >= least))

    def mark_at_most(self, what: str, value: float, most: float) -> None:
        """Add a line with a mark: ``value`` should be at most ``most``."""
        self.rows.append(Row(what, f"{value:.2f}", f"<= {most:g}", value <= most))

    def require(self, what: str, holds: bool, value: str) -> None:
        """Add a line for what has to hold; where it does not, that is a fault."""
        self.rows.append(Row(what, value, "required", holds))
        if not holds:
            self.faults.append(f"{what}: {value}")


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that a part may take; it looks at it between its measurements."""

    ends_s: float
    now_s: Callable[[], float] = time.monotonic

    @property
    def left_s(self) -> float:
        """Seconds that are left; negative when there are none."""
        return self.ends_s - self.now_s()

    @property
    def is_spent(self) -> bool:
        """Whether no time is left."""
        return self.left_s <= 0


Measure = Callable[[Bench, Budget], Findings]


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the benchmark, and the seconds that it takes at most on an H100 by estimate."""

    name: str
    measure: Measure
    budget_s: float
