"""Which blocks of our own memory are verified when they are loaded: a sample, chosen by key."""

from __future__ import annotations

from dataclasses import dataclass

_SCALE = 2**16


@dataclass(frozen=True, slots=True)
class Audit:
    """Selects ``share`` (0 to 1) of all keys; a key is always in the sample or never."""

    share: float

    def selects(self, key: bytes) -> bool:
        """Say whether the block of ``key`` is verified on every load."""
        return int.from_bytes(key[:2], "big") < self.share * _SCALE
