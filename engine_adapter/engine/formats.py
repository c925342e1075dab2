"""Where to compute, and in which dtypes: settings in words, checked against the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from engine_adapter.engine.kv_forms import FP8, require_convertible
from kvstore.errors import ConfigError

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_KV_DTYPES = {**_DTYPES, "int8": torch.int8, "fp8": FP8}


@dataclass(frozen=True, slots=True)
class Formats:
    """What is computed where and in which dtype; ``kept`` is that of keys and values."""

    device: torch.device
    compute: torch.dtype
    kept: torch.dtype


def choose_formats(device: str, compute_dtype: str, kv_dtype: str) -> Formats:
    """Return what these settings mean; ``auto`` is what suits the device, of keys what is computed in.

    Raises ``ConfigError`` for what is unknown, or what the device does not offer.
    """
    where = _device(device)
    fastest = torch.float32 if where.type == "cpu" else torch.bfloat16
    compute = _dtype("compute_dtype", compute_dtype, fastest, _DTYPES)
    kept = _dtype("kv_dtype", kv_dtype, compute, _KV_DTYPES)
    require_convertible(kept, where)
    return Formats(where, compute, kept)


def dtype_name(dtype: torch.dtype) -> str:
    """Return a dtype as settings and namespaces call it."""
    return str(dtype).removeprefix("torch.")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError("device", f"{name} is no device") from error
    if device.type not in {"cpu", "cuda"}:
        raise ConfigError("device", f"{name} is not served; cpu and cuda are")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device", "no CUDA device is available")
    return device


def _dtype(setting: str, name: str, default: torch.dtype, known: Mapping[str, torch.dtype]) -> torch.dtype:
    if name == "auto":
        return default
    if name not in known:
        raise ConfigError(setting, f"{name} is not one of auto, {', '.join(known)}")
    return known[name]
