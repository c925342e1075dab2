"""What ``adapter_params`` may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_adapter.foreign_settings import (
    COUNT,
    DEADLINE,
    LIFETIME,
    MODE,
    SHARE,
    WAIT,
    Bounds,
    check,
    parsed,
    require_room,
    setting,
)


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Where chunks are kept, and how far they are trusted. Each field's meaning stands beside it."""

    store: str = setting(
        "",
        "Address of a server that `prefixd serve` runs: `unix:///path` on this machine, `http://host:port` "
        "elsewhere. Without one, tiers of this process's own.",
    )
    token: str = setting("", "Token for that server, where it wants one.")
    mode: str = setting(
        "serve",
        "`serve` loads and stores; `verify` does, but finds nothing for a share of the lookups and compares "
        "what the engine stores then; `observe` stores and counts only; `off` does nothing.",
        MODE,
    )
    host_bytes: int = setting(4 << 30, "Memory of this process for chunks, without a `store`; 0: none.")
    disk_bytes: int = setting(0, "Disk space for chunks, without a `store`; 0: none.")
    disk_path: str = setting(
        "~/.cache/prefixd/lmcache-blocks", "Folder of those; one server at a time uses it."
    )
    redis_url: str = setting("", "A Redis or Valkey server for chunks, without a `store`; empty: none.")
    redis_bytes: int = setting(64 << 30, "How much of that server's memory our own chunks may take.")
    staging_bytes: int = setting(
        512 << 20,
        "Memory beside `host_bytes` for what is on its way; with a `store`, for what is. A few chunks must "
        "fit.",
        COUNT,
    )
    chunk_tokens: int = setting(256, "Tokens in a chunk: LMCache's `--chunk-size`.", Bounds(1, 1 << 20))
    weights: str = setting(
        "",
        "What tells these weights from others of the same name, in words of your own. LMCache knows a model "
        "by its name alone.",
    )
    num_workers: int = setting(4, "Threads that copy chunks in, and as many that copy them out.", COUNT)
    lookup_deadline_s: float = setting(
        1.0, "Longest wait for media that have to be asked, as Redis is.", WAIT
    )
    load_deadline_s: float = setting(10.0, "Longest wait for a chunk; what has not come is a miss.", DEADLINE)
    verify_share: float = setting(0.05, "Share of the lookups that mode `verify` has computed again.", SHARE)
    ttl_s: float | None = setting(
        None, "Life of a chunk from its last use on; unset: the store's own.", LIFETIME
    )
    prefill_tokens_per_s: float = setting(
        0.0,
        "How fast the engine computes prompts. With the prefetch policy `prefixd`, chunks that would come "
        "later than that are left to it; 0: not known, all are loaded.",
    )

    def __post_init__(self) -> None:
        check(self)
        require_room(self, "host_bytes", "disk_bytes", "redis_url", "store")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """Return the settings that ``adapter_params`` names. Raises ``ConfigError``."""
        return parsed(cls, given)
