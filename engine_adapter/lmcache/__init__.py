"""LMCache's server with our store as its second tier.

LMCache loads it by ``--l2-adapter '{"type": "plugin", "module_path": "engine_adapter.lmcache",
"class_name": "PrefixdL2Adapter", "adapter_params": {...}}'``. Its command with our prefetch policy beside its
own is ``python -m engine_adapter.lmcache server ...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_adapter.lmcache.adapter import PrefixdL2Adapter

__all__ = ["PrefixdL2Adapter"]


def __getattr__(name: str) -> Any:
    """Import the adapter when it is asked for: all else here needs no LMCache."""
    if name != "PrefixdL2Adapter":
        raise AttributeError(name)
    from engine_adapter.lmcache.adapter import PrefixdL2Adapter  # noqa: PLC0415 - needs LMCache

    return PrefixdL2Adapter
