"""Which models are refused, and why."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import (
    DeepseekV3Config,
    FalconMambaConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    GemmaConfig,
    GptOssConfig,
    JambaConfig,
    Llama4TextConfig,
    LlamaConfig,
    Mamba2Config,
    MistralConfig,
    Phi3Config,
    Qwen2Config,
    Qwen2VLConfig,
    Qwen3Config,
    Qwen3NextConfig,
    RecurrentGemmaConfig,
    T5Config,
)

from engine_adapter.engine.support import refusal

PHI3_FACTORS = ("short_factor", "long_factor")
PLAIN: dict[str, Any] = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(),
        Qwen2Config(),
        Qwen3Config(),
        MistralConfig(),
        MistralConfig(sliding_window=64),
        Qwen2Config(use_sliding_window=True, max_window_layers=2),
        Phi3Config(sliding_window=64),
        GemmaConfig(),
        Gemma2Config(),
        Gemma3TextConfig(),
    ],
    ids=lambda config: config.model_type,
)
def test_models_that_keep_plain_keys_and_values_are_served(config: Any) -> None:
    assert refusal(config.to_dict()) is None


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (T5Config(), "an encoder-decoder"),
        (Qwen2VLConfig(), "more than tokens"),
        (Mamba2Config(), "recurrent state"),
        (FalconMambaConfig(), "recurrent state"),
        (JambaConfig(), "recurrent state"),
        (RecurrentGemmaConfig(), "recurrent state"),
        (Qwen3NextConfig(), "recurrent state"),
        (DeepseekV3Config(), "multi-head latent attention"),
        (Gemma3nTextConfig(), "layers share keys and values"),
        (GptOssConfig(), "sinks"),
        (Llama4TextConfig(), "layers of type chunked_attention"),
        (Gemma3TextConfig(use_bidirectional_attention=True), "looks ahead"),
        (
            Phi3Config(rope_parameters={"rope_type": "longrope"} | dict.fromkeys(PHI3_FACTORS, [1.0] * 48)),
            "longrope depends on the largest position",
        ),
    ],
    ids=lambda value: getattr(value, "model_type", None),
)
def test_models_with_other_state_are_refused(config: Any, reason: str) -> None:
    assert reason in str(refusal(config.to_dict()))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
            "dynamic RoPE depends on the",
        ),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic RoPE"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "longrope depends on the largest position"),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, "dynamic RoPE"),
        ({"rope_parameters": {"rope_type": "spiral"}}, "unknown type spiral"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "is not a causal",
        ),
        ({"architectures": ["LlamaModel"]}, "LlamaModel is not a causal"),
        ({"is_causal": False}, "looks ahead"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of type linear_attention"),
        ({"layer_types": ["chunked_attention", "full_attention"]}, "layers of type chunked_attention"),
        ({"model_type": "gpt_oss"}, "sinks"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
        ({"model_type": "quux"}, "the architecture quux is not known to work; these are: arcee"),
        ({"model_type": None}, "the architecture None is not known"),
    ],
)
def test_fields_that_break_prefix_reuse_are_refused(fields: dict[str, Any], reason: str) -> None:
    assert refusal(PLAIN) is None
    assert reason in str(refusal(PLAIN | fields))


@pytest.mark.parametrize("kind", ["default", "linear", "llama3", "yarn"])
def test_rope_that_depends_on_the_position_alone_is_served(kind: str) -> None:
    assert refusal(PLAIN | {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4}}) is None
