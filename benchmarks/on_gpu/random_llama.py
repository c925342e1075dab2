"""A random Llama made where it computes, so that nothing is fetched, written, read or digested."""

from __future__ import annotations

import math
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from backends.kv_shape import KVShape
from benchmarks.on_gpu.sizes import BLOCK_TOKENS, Shape
from engine_adapter.engine.attention import register_attention
from engine_adapter.engine.models import LoadedModel, kv_config
from engine_adapter.engine.probe import attention_kinds
from kvstore.namespace import Namespace

_SEED = 3
# Scores of a standard deviation of about three: each query sees a few keys only, so that what a prompt says
# decides the answer. With the usual small weights the answer would be the same to whatever prompt; with
# larger ones a deep model would be chaotic in 16 bits, and no answer could be told from another.
_SHARP = 1.7
_SHARP_ONES = frozenset({"q_proj", "k_proj"})
_INTO_RESIDUAL = frozenset({"o_proj", "down_proj"})


def random_llama(shape: Shape, dtype: torch.dtype, device: torch.device, context_tokens: int) -> LoadedModel:
    """Return a Llama of ``shape`` with weights that are the same in every run on one kind of device."""
    config = _config(shape, context_tokens)
    with torch.device(device):
        made: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)  # type: ignore[no-untyped-call]  # theirs
    model: PreTrainedModel = made.eval()
    _randomize(model, shape.layers)
    kv_shape = KVShape(shape.layers, shape.kv_heads, shape.head_dim, BLOCK_TOKENS, dtype)
    register_attention()
    name = "random-llama"
    dtype_name = str(dtype).removeprefix("torch.")
    return LoadedModel(
        name=name,
        model=model,
        device=device,
        compute_dtype=dtype,
        kv_shape=kv_shape,
        num_heads=shape.heads,
        attention_kinds=attention_kinds(name, model, kv_shape),
        context_tokens=context_tokens,
        vocab_size=shape.vocab,
        eos_token_ids=frozenset({1}),
        namespace=Namespace(
            weights=f"random from seed {_SEED} on {device.type}",
            model_config=kv_config(config.to_dict()),
            compute_dtype=dtype_name,
            kv_dtype=dtype_name,
            block_tokens=BLOCK_TOKENS,
            label=name,
        ),
    )


def word_tokenizer(vocab_size: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one word per id."""
    vocabulary = {f"w{number}": number for number in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token=None))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="w0", eos_token="w1")  # type: ignore[no-untyped-call]  # noqa: S106 - theirs leaves it untyped; these are words


def read_bytes(model: PreTrainedModel) -> int:
    """Return the bytes of weights that a decode step reads: all but the table of embeddings."""
    table = model.get_input_embeddings()
    rows = {id(parameter) for parameter in table.parameters()}  # of which a step reads one for each token
    return sum(weight.nbytes for weight in model.parameters() if id(weight) not in rows)


def _config(shape: Shape, context_tokens: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        bos_token_id=0,
        eos_token_id=1,
    )


@torch.no_grad()
def _randomize(model: PreTrainedModel, num_layers: int) -> None:
    """Draw all matrices so that what goes through them keeps its size; scales of norms stay one."""
    dice = torch.Generator(model.device).manual_seed(_SEED)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, _deviation(name.split(".")[-2], weight, num_layers), generator=dice)


def _deviation(owner: str, weight: torch.Tensor, num_layers: int) -> float:
    if owner == "embed_tokens":
        return 1.0
    gain = _SHARP if owner in _SHARP_ONES else 1.0
    if owner in _INTO_RESIDUAL:
        gain /= math.sqrt(num_layers)
    return gain / math.sqrt(weight.shape[1])
