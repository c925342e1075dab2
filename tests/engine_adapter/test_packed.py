"""Packed weights compute what plain ones do, beside adapters too, and follow weights that are changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from engine_adapter.engine.lora import AdaptedLinear
from engine_adapter.engine.models import LoadedModel, load_model
from engine_adapter.engine.packed import PackedLinear, is_packing_faster
from tests.adapters import make_adapter

CPU = torch.device("cpu")

needs_bfloat16 = pytest.mark.skipif(
    not is_packing_faster(CPU, torch.bfloat16), reason="this CPU does not compute in bfloat16"
)


def packed_modules(loaded: LoadedModel) -> list[str]:
    return [name for name, module in loaded.model.named_modules() if isinstance(module, PackedLinear)]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 7, 130])
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)])
def test_a_packed_layer_gives_what_the_plain_one_gives(dtype: torch.dtype, rows: int, has_bias: bool) -> None:
    plain = nn.Linear(24, 40, bias=has_bias, dtype=dtype)
    x = torch.randn(1, 2 * rows, 24, dtype=dtype)[:, ::2]
    with torch.inference_mode():
        torch.testing.assert_close(PackedLinear(plain)(x), plain(x), rtol=2e-2, atol=2e-2)


@needs_bfloat16
def test_linear_modules_are_packed_in_bfloat16_and_not_where_that_is_refused(tiny_folder: Path) -> None:
    half = load_model(tiny_folder, compute_dtype="bfloat16")
    assert {name.rpartition(".")[2] for name in packed_modules(half)} == {
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head",
    }  # fmt: skip
    assert not packed_modules(load_model(tiny_folder, compute_dtype="bfloat16", cpu_weights="plain"))
    assert not packed_modules(load_model(tiny_folder, compute_dtype="float32"))


@needs_bfloat16
def test_an_adapter_adds_to_packed_weights(tiny_folder: Path, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "own", tiny_folder, ["q_proj"])
    packed = load_model(tiny_folder, compute_dtype="bfloat16", loras={"own": folder})
    plain = load_model(tiny_folder, compute_dtype="bfloat16", loras={"own": folder}, cpu_weights="plain")
    x = torch.randn(1, 3, 64, dtype=torch.bfloat16)
    answers = []
    for loaded in (packed, plain):
        module = loaded.model.get_submodule("model.layers.0.self_attn.q_proj")
        assert isinstance(module, AdaptedLinear)
        with torch.inference_mode(), loaded.adapters.step([None, "own", "own"], ["own"], CPU):
            answers.append(module(x[..., : module.in_features]))
    torch.testing.assert_close(*answers)
    assert isinstance(packed.model.get_submodule("model.layers.0.self_attn.q_proj.base"), PackedLinear)


@needs_bfloat16
def test_weights_that_are_changed_in_memory_are_packed_again(tiny_folder: Path) -> None:
    loaded = load_model(tiny_folder, compute_dtype="bfloat16")
    head = loaded.model.get_submodule("lm_head")
    x = torch.randn(1, 2, loaded.model.config.hidden_size, dtype=torch.bfloat16)
    with torch.inference_mode():
        before = head(x)
    with torch.no_grad():
        loaded.model.get_parameter("lm_head.weight").mul_(2)
    loaded.model_changed()
    with torch.inference_mode():
        torch.testing.assert_close(head(x), 2 * before)


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cuda", torch.bfloat16), ("cpu", torch.float32), ("cpu", torch.float16)],
)
def test_packing_pays_in_bfloat16_on_a_cpu_alone(device: str, dtype: torch.dtype) -> None:
    assert not is_packing_faster(torch.device(device), dtype)
