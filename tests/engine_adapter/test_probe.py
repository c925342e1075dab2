"""What a model asks of attention, and the models that ask for more than they get."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from backends.kv_shape import KVShape
from engine_adapter.engine.attention import ATTENTION_NAME, AttentionKind, register_attention
from engine_adapter.engine.probe import attention_kinds
from kvstore.errors import ModelRefusedError

SHAPE = KVShape(num_layers=2, num_kv_heads=2, head_dim=16, block_tokens=4, dtype=torch.float32)
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 128, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def model_of(family: str, **fields: Any) -> PreTrainedModel:
    register_attention()
    auto: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(family, **SIZES | fields)
    return cast("PreTrainedModel", auto.from_config(config, attn_implementation=ATTENTION_NAME).eval())


@pytest.mark.parametrize(
    ("family", "fields", "kinds"),
    [
        ("llama", {}, [AttentionKind()]),
        ("llama", {"sliding_window": 9}, [AttentionKind()]),
        ("mistral", {"sliding_window": 9}, [AttentionKind(9)]),
        ("qwen2", {"sliding_window": 9}, [AttentionKind()]),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
            [AttentionKind(), AttentionKind(9)],
        ),
        ("gemma2", {"sliding_window": 9}, [AttentionKind(9, 50.0), AttentionKind(None, 50.0)]),
        # The window is in the masks alone.
        (
            "qwen2_moe",
            {"use_sliding_window": True, "sliding_window": 9, "num_experts": 2, "num_experts_per_tok": 1},
            [AttentionKind(9), AttentionKind()],
        ),
    ],
)
def test_the_distinct_kinds_of_attention_come_in_the_order_of_the_layers(
    family: str, fields: dict[str, Any], kinds: list[AttentionKind]
) -> None:
    model = model_of(family, **fields)
    assert list(attention_kinds("tiny", model, SHAPE)) == kinds
    assert model.config._attn_implementation == ATTENTION_NAME


@pytest.mark.parametrize(
    ("family", "fields", "reason"),
    [
        ("gpt_oss", {"num_local_experts": 2, "num_experts_per_tok": 1}, "its attention needs s_aux"),
        ("llama4_text", {"attention_chunk_size": 8}, "its queries see other keys"),
        ("llama", {"is_causal": False}, "its queries see other keys"),
        ("mistral", {"sliding_window": 0}, "its queries see other keys"),
        ("gemma2", {"attn_logit_softcapping": 0.0}, "caps scores at 0.0, which must be above 0"),
        ("llama", {"num_key_value_heads": 4}, "layer 0 keeps 4 heads of 16, not 2 heads of 16"),
        ("llama", {"num_hidden_layers": 1}, "of its 2 layers 1 keep keys and values, and 1 attend to them"),
        ("mamba2", {"num_heads": 8, "n_groups": 1, "expand": 2}, "does not run on paged attention"),
    ],
)
def test_a_model_that_asks_for_more_is_refused(family: str, fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelRefusedError) as refused:
        attention_kinds("tiny", model_of(family, **fields), SHAPE)
    assert refused.value.model == "tiny"
    assert reason in refused.value.reason
