"""What a server is assembled from, as frozen data; only ``api`` reads files and the environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from backends.redis_address import RedisAddress
from engine_adapter.retaining import RetentionPlan
from kvstore.retention import Retention


@dataclass(frozen=True)
class TierSetup:
    """One tier below the device. ``write_mode`` is ``through``, ``back`` or ``second-use``: a ``WriteMode``.

    ``eviction`` and ``codec`` are names of plugins, ``path`` the folder of a disk tier, ``address`` the
    server of a Redis tier.
    """

    name: str
    budget_bytes: int
    eviction: str
    write_mode: str
    path: Path | None = None
    address: RedisAddress | None = None
    codec: str | None = None

    @property
    def medium(self) -> str:
        """A text that is another one where the bytes lie elsewhere or in another form; holds no secret."""
        return f"{self.path or self.address or ''} {self.codec or ''}"


@dataclass(frozen=True)
class ServingConfig:
    """Everything ``assemble`` needs. ``tiers`` are fastest first; ``auto`` formats follow the device.

    ``device_bytes`` is the device pool's budget, ``None`` for one that suits the device;
    ``default_ttl_s`` the life of a block whose request names none, ``None`` for no end, ``tier_ttls_s``
    others by the tier's name, ``retention`` rules of tenants and prefixes;
    ``weight_digests`` a file that remembers digests of weights between starts, ``cost_folder`` keeps
    what steps and loads were found to cost; ``mode`` is a ``Mode``; ``loras`` are folders of LoRA
    adapters, by name; ``cpu_weights`` is ``auto`` or ``plain``; without ``decode_graphs`` each step is
    launched kernel by kernel; ``shadow_policies`` are estimated beside the live one of each tier;
    ``record_trace`` is the file in which requests are recorded, of ``record_trace_bytes`` at most;
    ``recheck_share`` of the idle time goes into an audit, which remembers ``recheck_memory_bytes`` of tokens.
    """

    model: Path
    weight_digests: Path
    device: str
    compute_dtype: str
    kv_dtype: str
    block_tokens: int
    device_bytes: int | None
    device_eviction: str
    tiers: tuple[TierSetup, ...]
    default_ttl_s: float | None
    reload_policy: str
    load_deadline_s: float
    mode: str
    verify_share: float
    cost_folder: Path
    max_batched_tokens: int
    max_sequences: int
    max_waiting: int
    decode_graphs: bool = True
    loras: Mapping[str, Path] = field(default_factory=dict)
    cpu_weights: str = "auto"
    tier_ttls_s: Mapping[str, float | None] = field(default_factory=dict)
    retention: RetentionPlan = field(default_factory=RetentionPlan)
    shadow_policies: tuple[str, ...] = ()
    record_trace: Path | None = None
    record_trace_bytes: int = 1 << 28
    recheck_share: float = 0.0
    recheck_memory_bytes: int = 4 << 20

    def ttl_s(self, tier: str) -> float | None:
        """Return the life in a tier of a block whose request names none; ``None``: no end."""
        return self.tier_ttls_s.get(tier, self.default_ttl_s)


@dataclass(frozen=True)
class SidecarConfig:
    """What a store in a process of its own is made of. ``socket`` ``None``: it answers over HTTP alone.

    ``socket_mode`` is who may use the socket, as the bits of a file's mode.
    """

    tiers: tuple[TierSetup, ...]
    default_ttl_s: float | None
    tier_ttls_s: Mapping[str, float | None]
    socket: Path | None
    socket_mode: int = 0o600
    retention: Retention = field(default_factory=Retention)
