"""Prefixes of vLLM's requests, kept in a store: a KV connector.

vLLM loads it by ``kv_connector="PrefixdConnector"`` and ``kv_connector_module_path="engine_adapter.vllm"``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine_adapter.vllm.connector import PrefixdConnector

__all__ = ["PrefixdConnector"]


def __getattr__(name: str) -> Any:
    """Import the connector when it is asked for: all else here needs no vLLM."""
    if name != "PrefixdConnector":
        raise AttributeError(name)
    from engine_adapter.vllm.connector import PrefixdConnector  # noqa: PLC0415 - needs vLLM

    return PrefixdConnector
