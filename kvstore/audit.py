"""Which blocks of our own memory are verified when they are loaded: a sample, chosen by key."""

from __future__ import annotations

_SAMPLED_BYTES = 2


class Audit:
    """Selects ``share`` (0 to 1) of all keys; a key is always in the sample or never."""

    def __init__(self, share: float) -> None:
        self._bound: bytes = round(share * 256**_SAMPLED_BYTES).to_bytes(_SAMPLED_BYTES + 1, "big")

    def selects(self, key: bytes) -> bool:
        """Say whether the block of ``key`` is verified on every load."""
        return b"\0" + key[:_SAMPLED_BYTES] < self._bound
