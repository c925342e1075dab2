"""The engine's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine_adapter.engine.request import Mode
from kvstore.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits of the bundled engine. Raises ``ConfigError`` for values that cannot work.

    A step computes at most ``max_batched_tokens``, of at most ``max_sequences`` requests; up to
    ``max_waiting`` more wait their turn. ``load_deadline_s`` is how long one block's load may take
    before computing takes the block over, ``lease_s`` how long a hit is kept from eviction. ``mode``
    holds for requests that name none; in mode ``verify`` a ``verify_share`` of the hits is computed too.
    ``recheck_share`` of the idle time goes into computing prompts that were served once more, to compare what
    is stored of them; for that their tokens are remembered in ``recheck_memory_bytes``.
    """

    max_batched_tokens: int = 512
    max_sequences: int = 32
    max_waiting: int = 1024
    load_deadline_s: float = 2.0
    lease_s: float = 30.0
    mode: Mode = Mode.SERVE
    verify_share: float = 0.05
    recheck_share: float = 0.0
    recheck_memory_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        for name in ("verify_share", "recheck_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(name, "must lie between 0 and 1")
        for name in (
            "max_batched_tokens", "max_sequences", "max_waiting", "load_deadline_s", "lease_s",
            "recheck_memory_bytes",
        ):  # fmt: skip
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(name, "must be above 0")
        if self.max_sequences > self.max_batched_tokens:
            raise ConfigError("max_sequences", "must be at most max_batched_tokens")
