"""Which models can be served: those whose whole state is keys and values per token.

Decided from the configuration alone, before any weight is read; what it does not tell is asked of the
loaded model in ``probe``. A block is right wherever its prefix is right only if a token's keys and
values depend on the tokens before it and on nothing else; every rule below names one way in which a
model breaks that, or asks for attention that the engine does not compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]
"""A configuration as transformers' ``PreTrainedConfig.to_dict`` gives it."""

SUPPORTED_ARCHITECTURES = frozenset(
    {
        "afmoe", "apertus", "arcee", "bitnet", "cohere", "cohere2", "cohere2_moe", "cwm", "ernie4_5",
        "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "gemma", "gemma2", "gemma3_text", "glm", "glm4",
        "glm4_moe", "gpt_neox", "granite", "granitemoe", "granitemoeshared", "helium", "hunyuan_v1_dense",
        "hunyuan_v1_moe", "hy_v3", "hyperclovax", "jais2", "kolibri1", "laguna", "llama", "mellum",
        "minimax_m2", "ministral", "ministral3", "mistral", "mixtral", "nanochat", "olmo", "olmo2", "olmo3",
        "olmoe", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "seed_oss",
        "smollm3", "solar_open", "starcoder2", "vaultgemma",
    }
)  # fmt: skip
"""``model_type`` of each family that is tested against transformers' own attention and cache."""

_SERVED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})
_SUPPORTED_ROPE = frozenset({"default", "linear", "llama3", "yarn"})
_ROPE_REASONS = {
    "dynamic": "dynamic RoPE depends on the sequence length, so stored keys would not fit a longer one",
    "longrope": "longrope depends on the largest position in the batch, so stored keys would not fit",
}
_RECURRENT_FIELDS = (
    "ssm_cfg", "ssm_state_size", "state_size", "mamba_d_state", "mamba_d_conv", "conv_L_cache", "lru_width",
    "linear_conv_kernel_dim", "attn_layer_period", "hybrid_override_pattern",
)  # fmt: skip


_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip


def refusal(config: Config) -> str | None:
    """Return why a model with this configuration cannot be served, or ``None`` if it can."""
    return next((reason for rule in _RULES if (reason := rule(config))), None)


def _impossible_size(config: Config) -> str | None:
    sizes = {name: config[name] for name in _SIZES if config.get(name) is not None}
    wrong = next((name for name, size in sizes.items() if not isinstance(size, int) or size < 1), None)
    return f"{wrong} is {sizes[wrong]!r} and must be 1 or more" if wrong else None


def _encoder_decoder(config: Config) -> str | None:
    if config.get("is_encoder_decoder"):
        return "an encoder-decoder keeps keys and values of its encoder, which no prefix names"
    return None


def _other_inputs(config: Config) -> str | None:
    if config.get("text_config") or config.get("vision_config") or config.get("audio_config"):
        return "its prompts hold more than tokens (images or sound), which block keys do not name"
    return None


def _no_causal_lm(config: Config) -> str | None:
    names = config.get("architectures") or []
    if names and not any(name.endswith("ForCausalLM") for name in names):
        return f"{', '.join(names)} is not a causal language model"
    if config.get("is_causal") is False or config.get("use_bidirectional_attention"):
        return "its attention looks ahead, so a token's keys depend on later ones"
    return None


def _recurrent_state(config: Config) -> str | None:
    field = next((field for field in _RECURRENT_FIELDS if config.get(field)), None)
    if field:
        return f"it keeps a recurrent state ({field}), not keys and values of each token"
    return None


def _latent_attention(config: Config) -> str | None:
    if config.get("kv_lora_rank"):
        return "multi-head latent attention (kv_lora_rank) keeps a compressed state, not keys and values"
    return None


def _shared_between_layers(config: Config) -> str | None:
    field = next((field for field in ("num_kv_shared_layers", "use_cla") if config.get(field)), None)
    if field:
        return f"its layers share keys and values ({field}); the pool keeps them for each layer"
    return None


def _layer_types(config: Config) -> str | None:
    others = sorted(set(config.get("layer_types") or ()) - _SERVED_LAYER_TYPES)
    if others:
        served = ", ".join(sorted(_SERVED_LAYER_TYPES))
        return f"it has layers of type {', '.join(others)}; these are served: {served}"
    return None


def _chunked(config: Config) -> str | None:
    if config.get("attention_chunk_size"):
        return "its attention sees a chunk of the prompt (attention_chunk_size), not the tokens before"
    return None


def _sinks(config: Config) -> str | None:
    if config.get("model_type") == "gpt_oss" or config.get("attention_sinks"):
        return "its attention has sinks, which the engine does not honour"
    return None


def _rope(config: Config) -> str | None:
    for kind in _rope_types(config):
        if kind not in _SUPPORTED_ROPE:
            return _ROPE_REASONS.get(kind, f"its RoPE is of the unknown type {kind}")
    return None


def _quantized(config: Config) -> str | None:
    if config.get("quantization_config"):
        return "its weights are quantized (quantization_config); only plain weights are served"
    return None


def _unknown_architecture(config: Config) -> str | None:
    if config.get("model_type") not in SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(SUPPORTED_ARCHITECTURES))
        return f"the architecture {config.get('model_type')} is not known to work; these are: {known}"
    return None


def _rope_types(config: Config) -> Iterator[str]:
    # One set of parameters, or one for each type of layer.
    for parameters in (config.get("rope_parameters"), config.get("rope_scaling")):
        nested = [value for value in (parameters or {}).values() if isinstance(value, Mapping)]
        for one in nested or [parameters or {}]:
            yield one.get("rope_type") or one.get("type") or "default"


_RULES: tuple[Callable[[Config], str | None], ...] = (
    _encoder_decoder,
    _other_inputs,
    _no_causal_lm,
    _recurrent_state,
    _latent_attention,
    _shared_between_layers,
    _layer_types,
    _chunked,
    _sinks,
    _rope,
    _quantized,
    _unknown_architecture,
    _impossible_size,
)
