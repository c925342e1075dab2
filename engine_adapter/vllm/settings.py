"""What ``kv_connector_extra_config`` may say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_adapter.engine.request import Mode
from engine_adapter.foreign_settings import is_number, parsed, setting
from kvstore.errors import ConfigError
from kvstore.retention import MAX_LIFETIME_S

_CACHE = Path("~/.cache/prefixd")


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
    )
    host_bytes: int = setting(4 << 30, "Memory of this process for blocks, without a `store`.")
    disk_bytes: int = setting(0, "Disk space for blocks, without a `store`; 0: none.")
    disk_path: str = setting(str(_CACHE / "vllm-blocks"), "Folder of those; one engine at a time uses it.")
    cache_path: str = setting(
        str(_CACHE), "Folder where digests of weights and measured costs are kept between starts."
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
    )
    load_deadline_s: float = setting(10.0, "Longest wait for a load; what has not come is computed.")
    verify_share: float = setting(0.05, "Share of the hits that mode `verify` has computed and compared.")
    ttl_s: float | None = setting(None, "Life of a block from its last use on; unset: the store's own.")
    weights: str = setting(
        "",
        "What tells these weights from any others, in words of your own, where there are no "
        "`*.safetensors` to read.",
    )

    def __post_init__(self) -> None:
        _require("mode", self.mode, [mode.value for mode in Mode])
        _require("loading", self.loading, ["auto", "sync", "async"])
        for name in ("host_bytes", "disk_bytes"):
            nbytes = getattr(self, name)
            if not (is_number(nbytes) and isinstance(nbytes, int) and nbytes >= 0):
                raise ConfigError(name, f"must be a whole number of bytes, not {nbytes!r}")
        if not (is_number(self.load_deadline_s) and self.load_deadline_s > 0):
            raise ConfigError("load_deadline_s", "must be a number above 0")
        if not (is_number(self.verify_share) and 0 <= self.verify_share <= 1):
            raise ConfigError("verify_share", "must be a number from 0 to 1")
        if self.ttl_s is not None and not (is_number(self.ttl_s) and 0 < self.ttl_s <= MAX_LIFETIME_S):
            raise ConfigError("ttl_s", f"must be above 0 and at most {MAX_LIFETIME_S} seconds, or unset")
        if not self.store and not self.host_bytes and not self.disk_bytes:
            raise ConfigError("host_bytes", "without a store at least one tier needs room")

    @property
    def is_shared(self) -> bool:
        """Whether the store is another process's."""
        return bool(self.store)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """Return the settings that ``kv_connector_extra_config`` names. Raises ``ConfigError``."""
        return parsed(cls, given)


def _require(setting: str, value: str, known: list[str]) -> None:
    if value not in known:
        raise ConfigError(setting, f"{value!r} is not one of {', '.join(known)}")
