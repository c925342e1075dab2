"""How the prefetch policy, which LMCache makes without a word, finds the adapters of its process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from threading import Lock
from typing import Any

from engine_adapter.lmcache.second_tier import SecondTier


class Measured:
    """Second tiers that are open, by what their adapter was configured with. Thread-safe."""

    def __init__(self) -> None:
        self._tiers: dict[str, SecondTier] = {}
        self._lock = Lock()

    def add(self, params: Mapping[str, Any], tier: SecondTier) -> None:
        """Make a tier known; of two that are configured alike the later one is."""
        with self._lock:
            self._tiers[_text(params)] = tier

    def remove(self, tier: SecondTier) -> None:
        """Forget a tier."""
        with self._lock:
            self._tiers = {text: known for text, known in self._tiers.items() if known is not tier}

    def of(self, params: Mapping[str, Any]) -> SecondTier | None:
        """Return the tier that was configured so."""
        return self._tiers.get(_text(params))


MEASURED = Measured()
"""Those of this process: LMCache's door has no other way between an adapter and a policy."""


def _text(params: Mapping[str, Any]) -> str:
    return json.dumps(params, sort_keys=True, default=str)
