"""What ``kv_connector_extra_config`` may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_adapter.foreign_settings import (
    DEADLINE,
    LIFETIME,
    MODE,
    SHARE,
    Bounds,
    check,
    parsed,
    require_room,
    setting,
)


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Where prefixes are kept, and how far they are trusted. Each field's meaning stands beside it."""

    store: str = setting(
        "",
        "Address of a server that `prefixd serve` runs: `unix:///path` on this machine, `http://host:port` "
        "elsewhere. Without one, tiers of this process's own.",
    )
    token: str = setting("", "Token for that server, where it wants one.")
    mode: str = setting(
        "serve",
        "`serve` loads and stores; `verify` does, but has a share of the hits computed and compared; "
        "`observe` stores and counts only; `off` does nothing.",
        MODE,
    )
    host_bytes: int = setting(4 << 30, "Memory of this process for blocks, without a `store`; 0: none.")
    disk_bytes: int = setting(0, "Disk space for blocks, without a `store`; 0: none.")
    disk_path: str = setting("~/.cache/prefixd/vllm-blocks", "Folder of those; one engine at a time uses it.")
    cache_path: str = setting(
        "~/.cache/prefixd", "Folder where digests of weights and measured costs are kept between starts."
    )
    reload_policy: str = setting(
        "measured",
        "Who decides whether a hit is loaded: see [Policies](policies.md). `measured` loads as many of the "
        "leading blocks as is fastest by what loading and computing were found to take.",
    )
    loading: str = setting(
        "auto",
        "`sync`: before the step that needs it; `async`: while others compute; `auto`: from memory of this "
        "process the one, from elsewhere the other. With tensor parallelism or asynchronous scheduling "
        "always `async`.",
        Bounds(one_of=("auto", "sync", "async")),
    )
    load_deadline_s: float = setting(
        10.0, "Longest wait for a load; what has not come is computed.", DEADLINE
    )
    verify_share: float = setting(
        0.05, "Share of the hits that mode `verify` has computed and compared.", SHARE
    )
    ttl_s: float | None = setting(
        None, "Life of a block from its last use on; unset: the store's own.", LIFETIME
    )
    weights: str = setting(
        "",
        "What tells these weights from any others, in words of your own, where there are no "
        "`*.safetensors` to read.",
    )

    def __post_init__(self) -> None:
        check(self)
        require_room(self, "host_bytes", "disk_bytes", "store")

    @property
    def is_shared(self) -> bool:
        """Whether the store is another process's."""
        return bool(self.store)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """Return the settings that ``kv_connector_extra_config`` names. Raises ``ConfigError``."""
        return parsed(cls, given)
