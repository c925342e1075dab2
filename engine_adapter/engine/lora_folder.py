"""A LoRA adapter on disk, as PEFT saves it: read, and refused where it does not fit its model."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from engine_adapter.engine.checkpoint import ADAPTER_CONFIG_NAME, damage, read_json
from engine_adapter.engine.lora_config import LoraConfig, parse_lora_config
from kvstore.errors import ModelRefusedError, one_line

_log = logging.getLogger(__name__)

_WEIGHTS_NAME = "adapter_model.safetensors"
_PICKLED_NAME = "adapter_model.bin"
_PREFIX = "base_model.model."
_DOWN, _UP = ".lora_A.weight", ".lora_B.weight"


class Delta(NamedTuple):
    """What an adapter adds to a linear module: ``scaling * up @ down @ x``.

    ``down`` is ``[rank, in_features]``, ``up`` is ``[out_features, rank]``.
    """

    down: torch.Tensor
    up: torch.Tensor
    scaling: float


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that fits its model: what it adds, by module, and the content digest (hex) of that."""

    deltas: Mapping[str, Delta]
    digest: str


def read_adapter(folder: Path, linears: Mapping[str, nn.Linear], head: str | None, base_name: str) -> Adapter:
    """Read an adapter for a model with these linear modules, by name; ``head`` makes the logits.

    ``base_name`` is the model's own name: an adapter that names another one is served with a warning.
    Raises ``ModelRefusedError``.
    """
    facts = _read_config(folder)
    try:
        config = parse_lora_config(facts)
        deltas = _deltas(_read_tensors(folder), config, linears)
        _require_targets(deltas, config, linears, head)
    except ValueError as error:
        raise ModelRefusedError(str(folder), str(error)) from None
    made_for = str(facts.get("base_model_name_or_path") or base_name)
    if Path(made_for).name.lower() != base_name.lower():
        _log.warning("the adapter in %s was made for %r; the model here is %s", folder, made_for, base_name)
    return Adapter(deltas, _digest(deltas))


def _read_config(folder: Path) -> Mapping[str, object]:
    if not folder.is_dir():
        raise ModelRefusedError(str(folder), "there is no such folder")
    return read_json(folder / ADAPTER_CONFIG_NAME, folder)


def _read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return copies of an adapter's tensors. Raises ``ValueError`` where there are none to be read."""
    file = folder / _WEIGHTS_NAME
    if not file.exists() and (folder / _PICKLED_NAME).exists():
        raise ValueError(f"its weights are pickled ({_PICKLED_NAME}), never read here; save {_WEIGHTS_NAME}")
    if reason := damage(file):
        raise ValueError(f"{file.name} {reason}")
    try:
        return {name: tensor.clone() for name, tensor in load_file(file).items()}
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{file.name} cannot be read: {one_line(error)}") from error


def _deltas(
    tensors: Mapping[str, torch.Tensor], config: LoraConfig, linears: Mapping[str, nn.Linear]
) -> dict[str, Delta]:
    for name, tensor in tensors.items():
        _require_fit(name, tensor, config, linears)
    modules = sorted({_module_of(name) for name in tensors})
    return {module: _delta(tensors, config, module) for module in modules}


def _delta(tensors: Mapping[str, torch.Tensor], config: LoraConfig, module: str) -> Delta:
    names = [f"{_PREFIX}{module}{ending}" for ending in (_DOWN, _UP)]
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"it lacks the tensor {missing[0]}")
    return Delta(tensors[names[0]], tensors[names[1]], config.scaling_of(module))


def _require_fit(
    name: str, tensor: torch.Tensor, config: LoraConfig, linears: Mapping[str, nn.Linear]
) -> None:
    module = _module_of(name)
    if not module:
        raise ValueError(f"it holds {name[:200]!r}, which is no part of a LoRA of linear modules")
    if module not in linears:
        raise ValueError(f"it is for another model: this one has no linear module {module[:200]!r}")
    rank, linear = config.rank_of(module), linears[module]
    wanted = [rank, linear.in_features] if name.endswith(_DOWN) else [linear.out_features, rank]
    if list(tensor.shape) != wanted:
        raise ValueError(f"it is for another model, or rank: {name} is {list(tensor.shape)}, not {wanted}")
    if not tensor.is_floating_point() or not tensor.float().isfinite().all():
        raise ValueError(f"{name} ({tensor.dtype}) holds what are no plain numbers")


def _require_targets(
    deltas: Mapping[str, Delta], config: LoraConfig, linears: Mapping[str, nn.Linear], head: str | None
) -> None:
    """Raise ``ValueError`` unless there are tensors for the modules that it targets, and no others."""
    targeted = {name for name in linears if config.targets_module(name, is_head=name == head)}
    if lacking := sorted(targeted - deltas.keys()):
        raise ValueError(f"it targets {lacking[0]} and holds no tensors for it")
    if beyond := sorted(deltas.keys() - targeted):
        raise ValueError(f"it holds tensors for {beyond[0]}, which its target_modules do not name")
    if not deltas:
        raise ValueError("it is for another model: it targets no linear module of this one")


def _module_of(tensor: str) -> str:
    """Return the module that a tensor is for; empty when its name is of another kind."""
    ending = next((ending for ending in (_DOWN, _UP) if tensor.endswith(ending)), None)
    if ending is None or not tensor.startswith(_PREFIX):
        return ""
    return tensor.removeprefix(_PREFIX).removesuffix(ending)


def _digest(deltas: Mapping[str, Delta]) -> str:
    """Return a digest of all that is computed with, so of what the configuration makes of the tensors."""
    digest = blake2b(digest_size=16, person=b"prefixd-lora")
    for module, delta in sorted(deltas.items()):
        digest.update(f"{module} {delta.scaling!r}\n".encode())
        for tensor in (delta.down, delta.up):
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
