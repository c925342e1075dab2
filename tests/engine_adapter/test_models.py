"""Loading a model folder, its facts and its namespace; folders that cannot be served."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging as transformers_logging

from engine_adapter.engine.attention import AttentionKind
from engine_adapter.engine.models import digest_in_memory, kv_config, load_model, read_tokenizer
from kvstore.errors import ConfigError, ModelRefusedError
from kvstore.namespace import Namespace

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random Llama."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, vocab_size=64, max_position_embeddings=256, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = [2, 5]
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(saved, tmp_path / "tiny")


def edit_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def differing_fields(one: Namespace, other: Namespace) -> tuple[str, ...]:
    mine, theirs = asdict(one), asdict(other)
    return tuple(name for name in mine if name != "label" and mine[name] != theirs[name])


def test_a_loaded_model_states_its_facts(saved: Path) -> None:
    loaded = load_model(saved, block_tokens=8)
    assert loaded.name == "tiny"
    assert (loaded.compute_dtype, loaded.device.type) == (torch.float32, "cpu")
    assert loaded.kv_shape.dimensions == (2, 2, 8, 2, 8)
    assert loaded.kv_shape.dtype == torch.float32
    assert (loaded.num_heads, loaded.context_tokens, loaded.vocab_size) == (4, 256, 64)
    assert loaded.attention_kinds == (AttentionKind(),)
    assert loaded.eos_token_ids == {2, 5}
    assert loaded.namespace.label == "tiny"
    assert loaded.namespace.block_tokens == 8


def test_dtypes_of_computing_and_of_keys_are_chosen_apart(saved: Path) -> None:
    loaded = load_model(saved, compute_dtype="bfloat16")
    assert loaded.model.dtype == loaded.kv_shape.dtype == torch.bfloat16
    loaded = load_model(saved, kv_dtype="bfloat16")
    assert (loaded.model.dtype, loaded.kv_shape.dtype) == (torch.float32, torch.bfloat16)
    assert (loaded.namespace.compute_dtype, loaded.namespace.kv_dtype) == ("float32", "bfloat16")


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("compute_dtype", "int4", "compute_dtype: int4 is not one of auto, float32"),
        ("kv_dtype", "int4", "kv_dtype: int4 is not one of auto, float32, .*, fp8"),
        ("device", "meta", "device: meta is not served"),
        ("device", "toaster", "device: toaster is no device"),
    ],
)
def test_settings_that_cannot_be_used_are_named(saved: Path, setting: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_model(saved, **{setting: value})  # type: ignore[arg-type]


def change_weights(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.norm.weight"][0] += 1e-3
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def change_rope(folder: Path) -> None:
    edit_config(folder, rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0})


@pytest.mark.parametrize(
    ("change", "options", "fields"),
    [
        (lambda _: None, {}, ()),
        (lambda folder: edit_config(folder, transformers_version="4.0.0", use_cache=False), {}, ()),
        (change_weights, {}, ("weights",)),
        (change_rope, {}, ("model_config",)),
        (lambda folder: edit_config(folder, some_new_field=3), {}, ("model_config",)),
        (lambda _: None, {"block_tokens": 32}, ("block_tokens",)),
        (lambda _: None, {"kv_dtype": "float16"}, ("kv_dtype",)),
        (lambda _: None, {"kv_dtype": "int8"}, ("kv_dtype", "kv_form", "layout")),
        (lambda _: None, {"compute_dtype": "bfloat16"}, ("compute_dtype", "kv_dtype")),
    ],
)
def test_the_namespace_differs_where_keys_and_values_do(
    saved: Path,
    folder: Path,
    change: Callable[[Path], None],
    options: dict[str, Any],
    fields: tuple[str, ...],
) -> None:
    change(folder)
    before, after = load_model(saved).namespace, load_model(folder, **options).namespace
    assert differing_fields(before, after) == fields
    assert (before.digest == after.digest) == (not fields)


def test_weights_changed_in_memory_give_another_namespace(saved: Path) -> None:
    loaded = load_model(saved)
    on_disk = loaded.namespace
    first = loaded.model_changed()
    assert first == loaded.namespace == loaded.model_changed()
    assert differing_fields(on_disk, first) == ("weights",)
    with torch.no_grad():
        loaded.model.get_parameter("model.norm.weight")[0] += 1e-3
    assert differing_fields(loaded.model_changed(), first) == ("weights",)


def test_a_name_is_no_part_of_the_configuration_that_counts() -> None:
    config = LlamaConfig()
    config.name_or_path = "somewhere"
    assert kv_config(config.to_dict()) == kv_config(LlamaConfig().to_dict())


def test_loading_is_silent_and_leaves_transformers_as_it_was(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    load_model(folder)
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()) == before


def test_nothing_is_fetched(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    load_model(saved)


def cut(folder: Path, name: str, num_bytes: int) -> None:
    path = folder / name
    path.write_bytes(path.read_bytes()[:num_bytes])


def drop_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def add_harmless_tensors(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    tensors["model.layers.1.self_attn.k_scale"] = torch.ones(1)
    tensors["model.mtp.layers.0.norm.weight"] = torch.ones(32)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def shard_elsewhere(folder: Path) -> None:
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (shutil.rmtree, "there is no such folder"),
        (lambda folder: (folder / "config.json").unlink(), "it has no config.json"),
        (lambda folder: cut(folder, "config.json", 40), "config.json cannot be read"),
        (lambda folder: (folder / "config.json").write_text("[]"), "config.json is not a JSON object"),
        (lambda folder: (folder / "config.json").write_text("{}"), "config.json is not understood"),
        (lambda folder: edit_config(folder, model_type="quux"), "config.json is not understood"),
        (lambda folder: edit_config(folder, num_attention_heads="four"), "config.json is not understood"),
        (lambda folder: edit_config(folder, attention_chunk_size=64), "a chunk of the prompt"),
        (
            lambda folder: edit_config(folder, num_hidden_layers=1),
            "more layers than config.json asks for: model.layers.1.",
        ),
        (lambda folder: (folder / WEIGHTS).unlink(), "it has no model.safetensors"),
        (lambda folder: cut(folder, WEIGHTS, 0), "model.safetensors is no safetensors file"),
        (lambda folder: cut(folder, WEIGHTS, 100), "model.safetensors is cut short"),
        (lambda folder: cut(folder, WEIGHTS, -4), "model.safetensors is cut short"),
        (
            lambda folder: (folder / WEIGHTS).write_bytes(b"\x08" + bytes(7) + b"not json" + bytes(64)),
            "is no safe",
        ),
        (
            lambda folder: edit_config(folder, hidden_size=64),
            "lm_head.weight is [64, 32], not [64, 64]",
        ),
        (
            lambda folder: edit_config(folder, num_hidden_layers=-1),
            "num_hidden_layers is -1 and must be 1",
        ),
        (
            lambda folder: edit_config(folder, max_position_embeddings=0),
            "embeddings is 0 and must be 1",
        ),
        (lambda folder: edit_config(folder, num_attention_heads=0), "config.json is not understood"),
        (lambda folder: edit_config(folder, pad_token_id=10**6), "its weights cannot be read: Padding_idx"),
        (lambda folder: edit_config(folder, hidden_act="zzz"), "its weights cannot be read: 'zzz'"),
        (drop_tensor, "its weights lack 1 tensors, model.layers.1.mlp.up_proj.weight"),
        (shard_elsewhere, "model-00001-of-00002.safetensors is missing"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "it is a LoRA adapter"),
    ],
)
def test_a_folder_that_cannot_be_served_is_refused_in_one_line(
    folder: Path, damage: Callable[[Path], None], reason: str
) -> None:
    damage(folder)
    with pytest.raises(ModelRefusedError) as refused:
        load_model(folder)
    assert str(refused.value).startswith(str(folder))
    assert reason in refused.value.reason
    assert "\n" not in str(refused.value)


def test_tensors_that_are_left_over_do_no_harm(folder: Path, saved: Path) -> None:
    add_harmless_tensors(folder)
    loaded = load_model(folder)
    assert digest_in_memory(loaded.model) == digest_in_memory(load_model(saved).model)


def test_a_head_beside_tied_embeddings_does_no_harm(folder: Path) -> None:
    edit_config(folder, tie_word_embeddings=True)
    tensors = load_file(folder / WEIGHTS)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    model: Any = load_model(folder).model
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize("content", [None, "", "{", "[]", "{}", "5", '{"model": {"type": "BPE"}}'])
def test_a_tokenizer_that_is_missing_or_broken_is_refused_in_one_line(
    folder: Path, content: str | None
) -> None:
    if content is not None:
        (folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelRefusedError, match="its tokenizer is missing or broken: ") as refused:
        read_tokenizer(folder)
    assert "\n" not in str(refused.value)
