"""A model as prefill and its keys and values see it: from a config.json, from flags, or from both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_adapter.engine.checkpoint import CONFIG_NAME
from kvstore.errors import ConfigError

ITEM_BYTES: Mapping[str, int] = {
    "float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1, "int8": 1,
}  # fmt: skip
"""Bytes of one number of the keys and values; scales of the quantized forms are not counted."""

_DEFAULT_CONTEXT_TOKENS = 32_768
_LARGEST_SIZE = 1 << 30
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
# They keep something else than keys and values of every token in every layer.
_OTHER_STATE = ("kv_lora_rank", "num_kv_shared_layers", "ssm_cfg", "mamba_d_state")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What of a model decides the cost of prefill and the bytes of its keys and values.

    ``parameters`` are those that each token of a prompt is multiplied with: no embedding, of experts the
    active ones. ``weight_bytes`` are read by every step.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    kv_dtype: str
    parameters: float
    weight_bytes: float
    context_tokens: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * ITEM_BYTES[self.kv_dtype]

    @property
    def token_flops(self) -> float:
        """Operations on one token of a prompt, without attention."""
        return 2 * self.parameters

    @property
    def pair_flops(self) -> float:
        """Operations of attention on one pair of tokens: score and share of the sum, in all heads."""
        return 4 * self.num_layers * self.num_heads * self.head_dim


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of a model folder's config.json. Raises ``ConfigError``."""
    path = folder / CONFIG_NAME if folder.is_dir() else folder
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON"
        raise ConfigError("model", f"{path} cannot be read: {reason}") from error
    if not isinstance(config, dict):
        raise ConfigError("model", f"{path} is no configuration of a model")
    return config


def shape_of(name: str, config: Mapping[str, Any], given: Mapping[str, Any]) -> ModelShape:
    """Return the shape that ``config`` names; what is in ``given`` (not ``None``) counts instead.

    ``given`` has the names of config.json, and ``parameters`` and ``kv_dtype``. Raises ``ConfigError``
    where something is missing, or the model keeps no plain keys and values.
    """
    facts = {**config, **{key: value for key, value in given.items() if value is not None}}
    _refuse_window(config)
    if field := next((field for field in _OTHER_STATE if config.get(field)), None):
        raise ConfigError("model", f"{field}: it does not keep keys and values of each token in each layer")
    num_heads = _size(facts, "num_attention_heads", "heads")
    if facts.get("head_dim") is None:
        facts["head_dim"] = _size(facts, "hidden_size", "head-dim") // num_heads
    if facts.get("num_key_value_heads") is None:
        facts["num_key_value_heads"] = num_heads
    head_dim, num_kv_heads = (
        _size(facts, "head_dim", "head-dim"),
        _size(facts, "num_key_value_heads", "kv-heads"),
    )
    if num_heads % num_kv_heads:
        raise ConfigError("kv_heads", f"{num_heads} query heads cannot share {num_kv_heads} evenly")
    if facts.get("max_position_embeddings") is None:
        facts["max_position_embeddings"] = _DEFAULT_CONTEXT_TOKENS
    parameters = facts.get("parameters") or _parameters(facts)
    kv_dtype = str(facts.get("kv_dtype") or _dtype(facts))
    if kv_dtype not in ITEM_BYTES:
        raise ConfigError("kv_dtype", f"{kv_dtype} is not one of {', '.join(ITEM_BYTES)}")
    return ModelShape(
        name=name,
        num_layers=_size(facts, "num_hidden_layers", "layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        kv_dtype=kv_dtype,
        parameters=parameters,
        weight_bytes=parameters * ITEM_BYTES[_dtype(facts)],
        context_tokens=_size(facts, "max_position_embeddings", "model"),
    )


def _refuse_window(config: Mapping[str, Any]) -> None:
    """Refuse a window shorter than the context: costs are fitted by a square, as the policy does it."""
    window, context_tokens = config.get("sliding_window"), config.get("max_position_embeddings")
    if not window or not config.get("use_sliding_window", True):
        return
    layer_types = config.get("layer_types")
    if isinstance(layer_types, list) and "sliding_attention" not in layer_types:
        return
    if isinstance(window, int) and isinstance(context_tokens, int) and window >= context_tokens:
        return
    reason = "sliding_window: in this plan every token attends to all before it, so it would find computing"
    raise ConfigError(
        "model", f"{reason} too dear; for that as a bound, give --layers, --heads and the rest instead"
    )


def _parameters(facts: Mapping[str, Any]) -> float:
    """Return the parameters of plain decoder layers: attention and a gated feed-forward."""
    if any(facts.get(field) for field in _EXPERTS):
        raise ConfigError("parameters", "of a model of experts the active ones count: give --parameters")
    if not facts.get("hidden_size") or not facts.get("intermediate_size"):
        raise ConfigError("parameters", "they follow from no configuration here: give --parameters 8B or so")
    hidden, inner = _size(facts, "hidden_size", "parameters"), _size(facts, "intermediate_size", "parameters")
    heads = 2 * facts["num_attention_heads"] + 2 * facts["num_key_value_heads"]
    layer = hidden * facts["head_dim"] * heads + 3 * hidden * inner
    return float(_size(facts, "num_hidden_layers", "layers") * layer)


def _size(facts: Mapping[str, Any], field: str, flag: str) -> int:
    size = facts.get(field)
    if size is None:
        raise ConfigError(flag.replace("-", "_"), f"is not known: give --model DIR or --{flag}")
    if type(size) is not int or not 1 <= size <= _LARGEST_SIZE:
        reason = f"{size!r} ({field}) must be a whole number, 1 to {_LARGEST_SIZE}"
        raise ConfigError(flag.replace("-", "_"), reason)
    return size


def _dtype(facts: Mapping[str, Any]) -> str:
    """Return the form of the weights; 16 bits where none of ours is named."""
    named = str(facts.get("dtype") or facts.get("torch_dtype"))
    return named if named in ITEM_BYTES else "bfloat16"
