"""What a LoRA adapter's configuration says, as PEFT writes it, and which adapters can be served.

Decided from ``adapter_config.json`` alone. An adapter is served if it adds a low-rank product to the
output of linear modules and does nothing else; a field that is not known here is in the way when it is
set, since it may change the result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

MOST_RANK = 512
_ALL_LINEAR = "all-linear"
_MOST_ALPHA = 1e6
_MOST_CHARACTERS = 80
# Training alone reads these, or they say where an adapter comes from.
_HARMLESS = frozenset(
    {
        "auto_mapping", "base_model_name_or_path", "corda_config", "ensure_weight_tying", "eva_config",
        "fan_in_fan_out", "inference_mode", "loftq_config", "lora_dropout", "lora_ga_config",
        "megatron_config", "megatron_core", "peft_version", "qalora_group_size", "revision",
        "runtime_config", "task_type",
    }
)  # fmt: skip
_READ_BELOW = frozenset(
    {
        "alpha_pattern", "bias", "exclude_modules", "init_lora_weights", "lora_alpha", "peft_type", "r",
        "rank_pattern", "target_modules", "use_rslora",
    }
)  # fmt: skip
# Others (PiSSA, OLoRA, CorDA, LoftQ) change the weights of the base model as well.
_INITS_OF_THE_ADAPTER_ALONE = (None, True, False, "gaussian", "eva", "orthogonal")

Value = TypeVar("Value")
Names = str | tuple[str, ...]
"""Modules: a regular expression for their whole names, or what their names end with."""


@dataclass(frozen=True, slots=True)
class LoraConfig:
    """What shapes an adapter's result. A pattern's first key that fits a module's name holds for it."""

    rank: int
    alpha: float
    is_rank_stabilized: bool
    rank_pattern: Mapping[str, int]
    alpha_pattern: Mapping[str, float]
    targets: Names
    excluded: Names

    def rank_of(self, module: str) -> int:
        """Return the rank of the product that is added to a module."""
        return _looked_up(self.rank_pattern, module, self.rank)

    def scaling_of(self, module: str) -> float:
        """Return the factor of the product that is added to a module."""
        rank, alpha = self.rank_of(module), _looked_up(self.alpha_pattern, module, self.alpha)
        return alpha / math.sqrt(rank) if self.is_rank_stabilized else alpha / rank

    def targets_module(self, module: str, *, is_head: bool) -> bool:
        """Say whether a linear module is adapted; ``is_head``: it makes the logits."""
        if _names(self.excluded, module):
            return False
        return not is_head if self.targets == _ALL_LINEAR else _names(self.targets, module)


def parse_lora_config(facts: Mapping[str, Any]) -> LoraConfig:
    """Read a configuration. Raises ``ValueError`` with why it cannot be served."""
    _require_plain_lora(facts)
    targets = _modules(facts, "target_modules")
    if not targets:
        raise ValueError("it names no target_modules")
    return LoraConfig(
        rank=_rank(facts.get("r"), "r"),
        alpha=_number(facts.get("lora_alpha"), "lora_alpha"),
        is_rank_stabilized=_flag(facts, "use_rslora"),
        rank_pattern={
            key: _rank(rank, f"rank of {_shown(key)}") for key, rank in _pattern(facts, "rank_pattern")
        },
        alpha_pattern={
            key: _number(num, f"alpha of {_shown(key)}") for key, num in _pattern(facts, "alpha_pattern")
        },
        targets=targets,
        excluded=_modules(facts, "exclude_modules"),
    )


def _require_plain_lora(facts: Mapping[str, Any]) -> None:
    if facts.get("peft_type") != "LORA":
        raise ValueError(f"its peft_type is {_shown(facts.get('peft_type'))}; only LORA is served")
    if (bias := facts.get("bias", "none")) != "none":
        raise ValueError(f"its bias is {_shown(bias)}; only adapters that leave biases alone are served")
    init = facts.get("init_lora_weights")
    if not isinstance(init, bool | str | None) or init not in _INITS_OF_THE_ADAPTER_ALONE:
        raise ValueError(
            f"its init_lora_weights is {_shown(init)}, which changes the base model's weights too; "
            "save it converted to a plain LoRA"
        )
    for name, value in facts.items():
        if _is_set(value) and name not in _HARMLESS and name not in _READ_BELOW:
            raise ValueError(f"it sets {_shown(name)} to {_shown(value)}, which is not supported")


def _rank(value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_RANK:
        raise ValueError(f"its {name} is {_shown(value)} and must be a whole number from 1 to {MOST_RANK}")
    return value


def _number(value: Any, name: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Not ``>`` turned around: what is not a number is not in range.
    if not (is_number and abs(value) <= _MOST_ALPHA):
        raise ValueError(f"its {name} is {_shown(value)} and must be a number, at most 1e6")
    return float(value)


def _flag(facts: Mapping[str, Any], name: str) -> bool:
    value = facts.get(name, False)
    if not isinstance(value, bool):
        reason = f"its {name} is {_shown(value)} and must be true or false"
        raise ValueError(reason)  # noqa: TRY004 - the file is wrong, no caller
    return value


def _pattern(facts: Mapping[str, Any], name: str) -> Sequence[tuple[str, Any]]:
    value = facts.get(name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"its {name} is {_shown(value)} and must be an object")  # noqa: TRY004 - likewise
    for key in value:
        _require_expression(_of_pattern(key), name)
    return list(value.items())


def _modules(facts: Mapping[str, Any], name: str) -> Names:
    value = facts.get(name) or ()
    if isinstance(value, str):
        if value.lower() == _ALL_LINEAR:
            return _ALL_LINEAR
        _require_expression(value, name)
        return value
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise ValueError(f"its {name} is {_shown(value)} and must be a text or a list of them")
    return tuple(value)


def _require_expression(text: str, name: str) -> None:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"its {name} has {_shown(text)}, which is no regular expression: {error}") from None


def _looked_up(pattern: Mapping[str, Value], module: str, otherwise: Value) -> Value:
    found = (value for key, value in pattern.items() if re.match(_of_pattern(key), module))
    return next(found, otherwise)


def _of_pattern(key: str) -> str:
    """Return the expression for whole names of modules that a pattern's key fits."""
    return rf"(.*\.)?({key})$"


def _names(names: Names, module: str) -> bool:
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    return any(module == name or module.endswith(f".{name}") for name in names)


def _is_set(value: object) -> bool:
    return not (value is None or value is False or value in ([], {}, ""))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
