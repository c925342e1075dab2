"""What a foreign engine says of its model, as it goes into a namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# These say nothing of a model's keys and values, but differ between copies of its configuration.
_NO_MATTER = {"_name_or_path", "transformers_version", "architectures", "use_cache", "_attn_implementation"}


def telling_facts(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a model's configuration may shape its keys and values, as JSON has it."""
    return {name: plain(value) for name, value in config.items() if name not in _NO_MATTER}


def plain(value: Any) -> Any:
    """Return a value as JSON has it; what it has not, as text."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))  # their order is another one in each process
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
