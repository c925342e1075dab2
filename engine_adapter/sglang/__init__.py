"""Pages of SGLang's HiCache, kept in a store: a storage backend of it.

SGLang loads it by ``--hicache-storage-backend dynamic`` with ``module_path`` ``engine_adapter.sglang`` and
``class_name`` ``PrefixdHiCache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_adapter.sglang.hicache import PrefixdHiCache

__all__ = ["PrefixdHiCache"]


def __getattr__(name: str) -> Any:
    """Import the backend when it is asked for: all else here needs no SGLang."""
    if name != "PrefixdHiCache":
        raise AttributeError(name)
    from engine_adapter.sglang.hicache import PrefixdHiCache  # noqa: PLC0415 - needs SGLang

    return PrefixdHiCache
