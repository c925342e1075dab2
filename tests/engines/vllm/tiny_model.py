"""A small random Llama as a folder that vLLM serves."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, MLP, VOCAB = 256, 4, 8, 2, 32, 512, 512


def write_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Write configuration and weights."""
    folder.mkdir(parents=True)
    random = torch.Generator().manual_seed(seed)

    def weights(*shape: int) -> torch.Tensor:
        numbers: torch.Tensor = torch.randn(*shape, generator=random) * 1.5 / shape[-1] ** 0.5
        return numbers.to(torch.bfloat16)

    tensors = {
        "model.embed_tokens.weight": weights(VOCAB, HIDDEN) * 8,
        "model.norm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
        "lm_head.weight": weights(VOCAB, HIDDEN) * 2,
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        tensors |= {
            f"{name}.input_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
            f"{name}.post_attention_layernorm.weight": torch.ones(HIDDEN, dtype=torch.bfloat16),
            f"{name}.self_attn.q_proj.weight": weights(HEADS * HEAD, HIDDEN),
            f"{name}.self_attn.k_proj.weight": weights(KV_HEADS * HEAD, HIDDEN),
            f"{name}.self_attn.v_proj.weight": weights(KV_HEADS * HEAD, HIDDEN),
            f"{name}.self_attn.o_proj.weight": weights(HIDDEN, HEADS * HEAD),
            f"{name}.mlp.gate_proj.weight": weights(MLP, HIDDEN),
            f"{name}.mlp.up_proj.weight": weights(MLP, HIDDEN),
            f"{name}.mlp.down_proj.weight": weights(HIDDEN, MLP),
        }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    _write_tokenizer(folder)
    return folder


def write_tiny_lora(folder: Path, seed: int) -> Path:
    """Write an adapter for that model, strong enough to change what it says."""
    folder.mkdir(parents=True)
    random, rank = torch.Generator().manual_seed(seed), 8
    tensors = {}
    for layer in range(LAYERS):
        for name, width in (("q_proj", HEADS * HEAD), ("v_proj", KV_HEADS * HEAD)):
            part = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{part}.lora_A.weight"] = torch.randn(rank, HIDDEN, generator=random) / HIDDEN**0.5
            tensors[f"{part}.lora_B.weight"] = torch.randn(width, rank, generator=random)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": rank, "lora_alpha": rank, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "tiny",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _write_tokenizer(folder: Path) -> None:
    """Write one that knows a word for each token: ``w7`` is token 7."""
    words = {f"w{number}": number for number in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w2"}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts), encoding="utf-8")
