"""A model folder on disk: its configuration, and whether its weights are all there."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstore.errors import ModelRefusedError

CONFIG_NAME = "config.json"
ADAPTER_CONFIG_NAME = "adapter_config.json"
_INDEX_NAME = "model.safetensors.index.json"
_HEADER_LENGTH = struct.Struct("<Q")


def check_checkpoint(folder: Path) -> None:
    """Raise ``ModelRefusedError`` unless ``folder`` holds a configuration and whole safetensors files.

    Reads the files' headers only.
    """
    if not folder.is_dir():
        raise ModelRefusedError(str(folder), "there is no such folder")
    read_json(folder / CONFIG_NAME, folder)
    if (folder / ADAPTER_CONFIG_NAME).exists():
        raise ModelRefusedError(str(folder), "it is a LoRA adapter; name its base model, and it with --lora")
    for file in _weight_files(folder):
        if reason := damage(file):
            raise ModelRefusedError(str(folder), f"{file.name} {reason}")


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / _INDEX_NAME
    if index.exists():
        names = sorted(set(read_json(index, folder).get("weight_map", {}).values()))
        yield from (folder / name for name in names)
    elif (single := folder / "model.safetensors").exists():
        yield single
    else:
        raise ModelRefusedError(str(folder), "it has no model.safetensors")


def read_json(path: Path, folder: Path) -> dict[str, Any]:
    """Return the object in a file of a model's or an adapter's folder. Raises ``ModelRefusedError``."""
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelRefusedError(str(folder), f"it has no {path.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelRefusedError(str(folder), f"{path.name} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ModelRefusedError(str(folder), f"{path.name} is not a JSON object")
    return content


def damage(file: Path) -> str | None:
    """Return what is wrong with a safetensors file, judged by its header and its size."""
    try:
        with file.open("rb") as source:
            (header_bytes,) = _HEADER_LENGTH.unpack(source.read(_HEADER_LENGTH.size))
            file_bytes = file.stat().st_size
            if header_bytes > file_bytes:
                return "is cut short"
            tensors = json.loads(source.read(header_bytes))
            ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
    except FileNotFoundError:
        return "is missing"
    except (OSError, ValueError, struct.error, TypeError, KeyError, AttributeError):
        return "is no safetensors file"
    expected_bytes = _HEADER_LENGTH.size + header_bytes + max(ends, default=0)
    if file_bytes < expected_bytes:
        return f"is cut short: {file_bytes} of {expected_bytes} bytes"
    return None
