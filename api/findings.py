"""What a check of ``prefixd doctor`` found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How a finding is."""

    GOOD = "ok"
    DOUBTFUL = "warn"
    BAD = "FAIL"


@dataclass(frozen=True)
class Finding:
    """What one check found, in one line."""

    subject: str
    level: Level
    detail: str
