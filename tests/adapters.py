"""LoRA adapters with random weights for tests, and their base model with them merged in by hand."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path,
    base: Path,
    modules: Sequence[str] = ATTENTION,
    *,
    seed: int = 0,
    rank_of: Callable[[str], int] = lambda _: 4,
    **facts: Any,
) -> Path:
    """Save an adapter of ``base``, a model's folder, with tensors for modules of these last names."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, weight in load_file(base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if module.rpartition(".")[2] in modules:
            rank, prefix = rank_of(module), f"base_model.model.{module}"
            tensors[f"{prefix}.lora_A.weight"] = torch.randn(rank, weight.shape[1], generator=generator) / 3
            tensors[f"{prefix}.lora_B.weight"] = torch.randn(weight.shape[0], rank, generator=generator) / 3
    save_file(tensors, folder / WEIGHTS)
    plain = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(modules), "bias": "none"}
    (folder / CONFIG).write_text(json.dumps({**plain, **facts}))
    return folder


def edit_config(folder: Path, **facts: Any) -> None:
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)


def merged(base: Path, adapter: Path, folder: Path, scaling_of: Callable[[str], float]) -> Path:
    """Save ``base`` with ``scaling * B @ A`` of an adapter added to each of its modules' weights."""
    shutil.copytree(base, folder)
    weights, tensors = load_file(base / "model.safetensors"), load_file(adapter / WEIGHTS)
    for name in [name for name in tensors if name.endswith(".lora_A.weight")]:
        module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        up = tensors[name.replace("lora_A", "lora_B")]
        weights[f"{module}.weight"] = weights[f"{module}.weight"] + scaling_of(module) * up @ tensors[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
