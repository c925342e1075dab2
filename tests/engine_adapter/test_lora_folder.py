"""Adapters on disk: which modules they adapt and by how much, and those that cannot be served."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Phi3Config, Phi3ForCausalLM

from engine_adapter.engine.lora import Adapters, load_adapters, rows_by_adapter
from engine_adapter.engine.lora_config import MOST_RANK, parse_lora_config
from engine_adapter.engine.models import load_model
from kvstore.errors import InvariantError, ModelRefusedError
from tests.adapters import ATTENTION, CONFIG, LINEAR, WEIGHTS, edit_config, edit_tensors, make_adapter, merged

CPU = torch.device("cpu")
Q = "base_model.model.model.layers.1.self_attn.q_proj"
TOKENS = torch.tensor([[5, 3, 250, 17, 80, 3, 9, 41]])


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    """An adapter that a test may damage."""
    return make_adapter(tmp_path / "sql", tiny_folder)


def fused_model(folder: Path) -> Path:
    """Save a Phi-3, whose projections are fused."""
    torch.manual_seed(0)
    config = Phi3Config(
        vocab_size=258, hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, pad_token_id=0, initializer_range=0.3,
    )  # fmt: skip
    Phi3ForCausalLM(config).save_pretrained(folder)
    return folder


def logits(folder: Path, adapter: Path | None = None) -> torch.Tensor:
    """Return transformers' logits after the last four tokens, by the adapter in its own rows alone."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    adapters = load_adapters(model, {"own": adapter} if adapter else {}, "tiny")
    names = ["own" if adapter else None] * TOKENS.shape[1]
    with torch.inference_mode(), adapters.step(names, names[:4], CPU):
        kept = torch.arange(4) + 4
        found: torch.Tensor = model(input_ids=TOKENS, logits_to_keep=kept).logits[0]
    return found


@pytest.mark.parametrize(
    ("modules", "facts", "scaling"),
    [
        (("q_proj",), {}, 2.0),
        (("v_proj", "down_proj"), {"lora_alpha": 2, "use_rslora": True}, 1.0),
        (("o_proj",), {"target_modules": r"model\.layers\.[01]\.self_attn\.o_proj|.*2.*o_proj"}, 2.0),
        (LINEAR, {"target_modules": "all-linear", "alpha_pattern": {".*": 4}}, 1.0),
        (ATTENTION, {"target_modules": "all-linear", "exclude_modules": r".*\.mlp\..*"}, 2.0),
        (("q_proj", "lm_head"), {}, 2.0),
    ],
)
def test_an_adapter_computes_what_merged_weights_do(
    tmp_path: Path, tiny_folder: Path, modules: tuple[str, ...], facts: dict[str, Any], scaling: float
) -> None:
    adapter = make_adapter(tmp_path / "own", tiny_folder, modules, **facts)
    expected = logits(merged(tiny_folder, adapter, tmp_path / "merged", lambda _: scaling))
    torch.testing.assert_close(logits(tiny_folder, adapter), expected, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(logits(tiny_folder), expected, atol=0.1)


def test_fused_projections_are_linear_modules_like_others(tmp_path: Path) -> None:
    base = fused_model(tmp_path / "phi3")
    adapter = make_adapter(tmp_path / "own", base, ("qkv_proj", "gate_up_proj"))
    expected = logits(merged(base, adapter, tmp_path / "merged", lambda _: 2.0))
    torch.testing.assert_close(logits(base, adapter), expected, atol=1e-3, rtol=1e-3)


def test_rows_lie_in_a_slice_where_they_can() -> None:
    rows = rows_by_adapter([None, "a", "a", "b", None, "b"], CPU)
    assert rows["a"] == slice(1, 3)
    assert isinstance(rows["b"], torch.Tensor)
    assert rows["b"].tolist() == [3, 5]
    assert rows_by_adapter([None] * 3, CPU) == {}


def test_a_step_for_an_adapter_that_is_not_there_is_not_computed() -> None:
    with pytest.raises(InvariantError, match="adapters that are not here"), Adapters().step(["a"], [], CPU):
        pass


def test_a_module_that_is_given_other_rows_is_not_computed(folder: Path, tiny_folder: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_folder)
    adapters = load_adapters(model, {"own": folder}, "tiny")
    with adapters.step(["own"] * 3, [], CPU), pytest.raises(InvariantError, match="8 rows of a step of 3"):
        model(input_ids=TOKENS)
    assert adapters.all_rows.rows == {}


def test_weights_in_16_bits_are_computed_in_the_models_format(folder: Path, tiny_folder: Path) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({n: t.bfloat16() for n, t in tensors.items()}))
    plain = load_model(tiny_folder, loras={"own": folder})
    half = load_model(tiny_folder, loras={"own": folder}, compute_dtype="bfloat16")
    assert plain.adapters.digests == half.adapters.digests
    x = torch.ones(1, 2, 48)
    with half.adapters.step(["own", None], [], CPU), torch.inference_mode():
        out = half.model.model.layers[0].self_attn.q_proj(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert not torch.equal(out[0, 0], out[0, 1])


def test_an_adapter_made_for_a_model_of_another_name_is_served_with_a_warning(
    folder: Path, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_config(folder, base_model_name_or_path=f"some/{tiny_folder.name.upper()}")
    load_model(tiny_folder, loras={"own": folder})
    assert caplog.text == ""
    edit_config(folder, base_model_name_or_path="some/other")
    with caplog.at_level(logging.WARNING):
        load_model(tiny_folder, loras={"own": folder})
    assert "was made for 'some/other'" in caplog.text


def config(**facts: Any) -> Callable[[Path], None]:
    return lambda folder: edit_config(folder, **facts)


def tensors(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    return lambda folder: edit_tensors(folder, lambda held: (change(held), None)[1])


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


def cut(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-4])


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda folder: (folder / CONFIG).unlink(), "it has no adapter_config.json"),
        (lambda folder: (folder / CONFIG).write_text("[]"), "adapter_config.json is not a JSON object"),
        (lambda folder: (folder / CONFIG).write_text("[" * 100_000), "adapter_config.json cannot be read"),
        (lambda folder: (folder / WEIGHTS).unlink(), "adapter_model.safetensors is missing"),
        (pickled, "its weights are pickled (adapter_model.bin), never read here; save adapter_model"),
        (cut, "adapter_model.safetensors is cut short"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"\x80\x02}"), "is no safetensors file"),
        (config(peft_type="IA3"), "its peft_type is 'IA3'; only LORA is served"),
        (config(peft_type="line\nbreak" * 99), "its peft_type is 'line\\nbreak"),
        (config(bias="all"), "its bias is 'all'"),
        (config(use_dora=True), "it sets 'use_dora' to True, which is not supported"),
        (config(modules_to_save=["embed_tokens"]), "it sets 'modules_to_save' to ['embed_tokens']"),
        (config(layers_to_transform=0), "it sets 'layers_to_transform' to 0"),
        (config(lora_bias=True), "it sets 'lora_bias' to True"),
        (config(target_parameters=["x"]), "it sets 'target_parameters'"),
        (config(not_invented_yet={"a": 1}), "it sets 'not_invented_yet' to {'a': 1}, which is not supported"),
        (config(init_lora_weights="pissa_niter_4"), "which changes the base model's weights too"),
        (config(init_lora_weights=["pissa"]), "which changes the base model's weights too"),
        (config(r=0), "its r is 0 and must be a whole number from 1 to 512"),
        (config(r=MOST_RANK + 1), "its r is 513 and must be"),
        (config(r=True), "its r is True and must be"),
        (config(r=None), "its r is None and must be"),
        (config(rank_pattern={"q_proj": 9999}), "its rank of 'q_proj' is 9999 and must be"),
        (config(rank_pattern={"(": 4}), "its rank_pattern has"),
        (config(rank_pattern=[4]), "its rank_pattern is [4] and must be an object"),
        (config(lora_alpha="8"), "its lora_alpha is '8' and must be a number"),
        (config(lora_alpha=math.inf), "its lora_alpha is inf and must be a number"),
        (config(lora_alpha=math.nan), "its lora_alpha is nan and must be a number"),
        (config(lora_alpha=10**400), "its lora_alpha is 1000"),
        (config(alpha_pattern={"q_proj": None}), "its alpha of 'q_proj' is None and must be a number"),
        (config(use_rslora="yes"), "its use_rslora is 'yes' and must be true or false"),
        (config(target_modules=None), "it names no target_modules"),
        (config(target_modules="("), "its target_modules has '(', which is no regular expression"),
        (config(target_modules=[4]), "its target_modules is [4] and must be a text or a list of them"),
        (config(target_modules=["q_proj"]), "it holds tensors for model.layers.0.self_attn.k_proj, which"),
        (config(target_modules=LINEAR), "it targets model.layers.0.mlp.down_proj and holds no tensors"),
        (config(r=8), "is [4, 48], not [8, 48]"),
        (tensors(lambda held: held.pop(f"{Q}.lora_B.weight")), f"it lacks the tensor {Q}.lora_B.weight"),
        (
            tensors(lambda held: [held.pop(f"{Q}.lora_{side}.weight") for side in "AB"]),
            "it targets model.layers.1.self_attn.q_proj and holds no tensors for it",
        ),
        (
            tensors(lambda held: held.update({f"{Q}.lora_magnitude_vector": torch.ones(48)})),
            f"it holds '{Q}.lora_magnitude_vector', which is no part of a LoRA",
        ),
        (
            tensors(lambda held: held.update({f"{Q.replace('1', '7')}.lora_A.weight": torch.ones(4, 48)})),
            "it is for another model: this one has no linear module 'model.layers.7.self_attn.q_proj'",
        ),
        (
            tensors(lambda held: held.update({f"{Q}.lora_A.weight": torch.ones(4, 64)})),
            f"it is for another model, or rank: {Q}.lora_A.weight is [4, 64], not [4, 48]",
        ),
        (
            tensors(lambda held: held.update({f"{Q}.lora_A.weight": torch.ones(4, 48, dtype=torch.int8)})),
            "holds what are no plain numbers",
        ),
        (
            tensors(lambda held: held[f"{Q}.lora_A.weight"][0, 0].fill_(torch.nan)),
            "holds what are no plain numbers",
        ),
        (tensors(lambda held: held.clear()), "it targets model.layers.0.self_attn.k_proj and holds"),
    ],
)  # fmt: skip
def test_an_adapter_that_cannot_be_served_is_refused_in_one_line(
    folder: Path, tiny_folder: Path, damage: Callable[[Path], object], reason: str
) -> None:
    damage(folder)
    with pytest.raises(ModelRefusedError) as refused:
        load_model(tiny_folder, loras={"own": folder})
    assert refused.value.model == str(folder)
    assert reason in refused.value.reason
    assert "\n" not in str(refused.value)
    assert len(refused.value.reason) < 400


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path, tiny_folder: Path) -> None:
    with pytest.raises(ModelRefusedError, match="there is no such folder"):
        load_model(tiny_folder, loras={"own": tmp_path / "none"})


def test_what_peft_writes_beside_is_no_obstacle() -> None:
    written: dict[str, Any] = {
        "alora_invocation_tokens": None, "alpha_pattern": {}, "arrow_config": None, "auto_mapping": None,
        "base_model_name_or_path": "some/model", "bias": "none", "corda_config": None,
        "ensure_weight_tying": False, "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False,
        "inference_mode": True, "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
        "layers_to_transform": None, "loftq_config": {}, "lora_alpha": 16, "lora_bias": False,
        "lora_dropout": 0.05, "megatron_config": None, "megatron_core": "megatron.core",
        "modules_to_save": None, "peft_type": "LORA", "peft_version": "0.19.1", "qalora_group_size": 16,
        "r": 8, "rank_pattern": {}, "revision": None, "target_modules": ["q_proj"],
        "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None,
        "use_bdlora": None, "use_dora": False, "use_qalora": False, "use_rslora": False,
    }  # fmt: skip
    parsed = parse_lora_config(json.loads(json.dumps(written)))
    assert parsed.targets_module("model.layers.0.self_attn.q_proj", is_head=False)
    assert not parsed.targets_module("model.layers.0.self_attn.xq_proj", is_head=False)
    assert (parsed.rank_of("q_proj"), parsed.scaling_of("q_proj")) == (8, 2.0)


def test_the_first_key_of_a_pattern_that_fits_holds() -> None:
    facts = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["a", "b"]}
    parsed = parse_lora_config({**facts, "rank_pattern": {r"1\.a": 2, "a": 4}, "alpha_pattern": {"b": 4}})
    names = ("x.1.a", "x.11.a", "x.2.a", "x.1.b", "x.1.aa")
    assert [parsed.rank_of(name) for name in names] == [2, 4, 4, 8, 8]
    assert [parsed.scaling_of(name) for name in ("x.1.a", "x.b")] == [4.0, 0.5]
