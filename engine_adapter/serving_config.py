"""What a server is assembled from, as frozen data; only ``api`` reads files and the environment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TierConfig:
    """One tier below the device. ``write_mode`` is ``through``, ``back`` or ``second_use``.

    ``ttl_s`` is the life of a block whose request names none (``None``: no limit); ``path`` is the
    folder of a disk tier.
    """

    name: str
    budget_bytes: int
    eviction: str
    write_mode: str
    ttl_s: float | None = None
    path: Path | None = None


@dataclass(frozen=True)
class ServingConfig:
    """Everything ``assemble`` needs. ``tiers`` are fastest first; ``auto`` formats follow the device.

    ``device_bytes`` is the device pool's budget, ``None`` for one that suits the device.
    """

    model: Path
    device: str
    compute_dtype: str
    kv_dtype: str
    block_tokens: int
    device_bytes: int | None
    device_eviction: str
    tiers: tuple[TierConfig, ...]
    reload_policy: str
    load_deadline_s: float
    max_batched_tokens: int
    max_sequences: int
    max_waiting: int
