"""What ``--hicache-storage-backend-extra-config`` may say to us."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_adapter.foreign_settings import (
    DEADLINE,
    LIFETIME,
    MODE,
    SHARE,
    WAIT,
    check,
    parsed,
    require_room,
    setting,
)

SGLANGS_OWN = frozenset(
    {"backend_name", "module_path", "class_name", "interface_v1", "allocator", "file_storage_path"}
)
"""What SGLang itself reads from the same object, or puts there."""


@dataclass(frozen=True, slots=True)
class AdapterSettings:
    """Where pages are kept, and how far they are trusted. Each field's meaning stands beside it."""

    store: str = setting(
        "",
        "Address of a server that `prefixd serve` runs: `unix:///path` on this machine, `http://host:port` "
        "elsewhere. Without one, each rank has tiers of its own process's.",
    )
    token: str = setting("", "Token for that server, where it wants one.")
    mode: str = setting(
        "serve",
        "`serve` loads and stores; `verify` does, but finds nothing for a share of the prompts, and compares "
        "what SGLang computes and stores then; `observe` stores and counts only; `off` does nothing.",
        MODE,
    )
    host_bytes: int = setting(4 << 30, "Memory of each rank's process for pages, without a `store`; 0: none.")
    disk_bytes: int = setting(0, "Disk space of each rank for pages, without a `store`; 0: none.")
    disk_path: str = setting(
        "~/.cache/prefixd/sglang-pages", "Folder of those, with one of its own for each rank."
    )
    cache_path: str = setting("~/.cache/prefixd", "Folder where digests of weights are kept between starts.")
    lookup_deadline_s: float = setting(
        1.0, "Longest wait for media that have to be asked, as Redis is.", WAIT
    )
    load_deadline_s: float = setting(
        10.0, "Longest wait for a batch of pages; what has not come is computed.", DEADLINE
    )
    verify_share: float = setting(
        0.05, "Share of the prompts found that mode `verify` has computed again.", SHARE
    )
    ttl_s: float | None = setting(
        None, "Life of a page from its last use on; unset: the store's own.", LIFETIME
    )
    salt: str = setting(
        "", "A secret that keeps pages apart from those of servers without it. SGLang's keys hold each "
        "request's own.",
    )  # fmt: skip
    weights: str = setting(
        "",
        "What tells these weights, and those of a draft model and adapters, from any others, in words of "
        "your own: where there are no `*.safetensors` to read.",
    )

    def __post_init__(self) -> None:
        check(self)
        require_room(self, "host_bytes", "disk_bytes", "store")

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> AdapterSettings:
        """Return the settings among ``given``, SGLang's own left out. Raises ``ConfigError``."""
        return parsed(cls, {name: value for name, value in given.items() if name not in SGLANGS_OWN})
