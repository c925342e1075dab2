"""LoRA adapters beside one model: in a step, each row is computed with the adapter of its request.

A step's batch is one row of tokens, ``[1, rows]``, of several requests. A linear module that any adapter
targets is replaced, once, by one that adds what the adapters in the step have learnt to their own rows::

    rows      0 1 2 3 4 5 6 7 8 9
    adapter   - - a a a a - b b -         out[2:6] += up_a @ down_a @ x[2:6]
                                          out[7:9] += up_b @ down_b @ x[7:9]
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from engine_adapter.engine.lora_folder import Adapter, read_adapter
from kvstore.errors import InvariantError

Rows = slice | torch.Tensor


@dataclass(slots=True)
class Owners:
    """Which of a step's ``num_rows`` rows belong to which adapter; most have none."""

    num_rows: int = 0
    rows: Mapping[str, Rows] = field(default_factory=dict)

    def assign(self, adapters: Sequence[str | None], device: torch.device) -> None:
        """Note the adapter of each row, ``None``: the model alone."""
        self.num_rows = len(adapters)
        self.rows = rows_by_adapter(adapters, device)

    def clear(self) -> None:
        """No row has an adapter."""
        self.num_rows, self.rows = 0, {}


class AdaptedLinear(nn.Linear):
    """A linear module whose rows may each have an adapter. Its parameters are the ones of ``base``."""

    def __init__(self, base: nn.Linear, owners: Owners) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.base = base
        self._owners = owners
        self._factors: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, name: str, down: torch.Tensor, up: torch.Tensor) -> None:
        """Let rows of adapter ``name`` have ``up @ down @ x`` added, computed in this module's dtype."""
        down, up = (factor.to(self.weight.device, self.weight.dtype) for factor in (down, up))
        self._factors[name] = (down, up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x)
        if self._owners.rows:
            self._adapt(x.reshape(-1, self.in_features), out.view(-1, self.out_features))
        return out

    def _adapt(self, x: torch.Tensor, out: torch.Tensor) -> None:
        if len(x) != self._owners.num_rows:
            raise InvariantError(f"{len(x)} rows of a step of {self._owners.num_rows}: whose are they?")
        for name, rows in self._owners.rows.items():
            if (factors := self._factors.get(name)) is not None:
                down, up = factors
                out[rows] += linear(linear(x[rows], down), up)


@dataclass(frozen=True, slots=True)
class Adapters:
    """The adapters that requests may choose; ``digests`` are those of their content, by name.

    ``all_rows`` are a step's, ``last_rows`` those of them that logits are made of.
    """

    digests: Mapping[str, str] = field(default_factory=dict)
    all_rows: Owners = field(default_factory=Owners)
    last_rows: Owners = field(default_factory=Owners)

    @contextmanager
    def step(
        self, rows: Sequence[str | None], last: Sequence[str | None], device: torch.device
    ) -> Iterator[None]:
        """Compute inside with the adapters of these rows, and of those that logits are made of."""
        self.all_rows.assign(rows, device)
        self.last_rows.assign(last, device)
        try:
            if unknown := self.all_rows.rows.keys() - self.digests.keys():
                raise InvariantError(f"a step needs adapters that are not here: {sorted(unknown)}")
            yield
        finally:
            self.all_rows.clear()
            self.last_rows.clear()


def load_adapters(model: PreTrainedModel, folders: Mapping[str, Path], base_name: str) -> Adapters:
    """Put the adapters in ``folders``, by name, beside ``model``, which computes as before without them.

    ``base_name`` is what the model's folder is called. Raises ``ModelRefusedError`` for an adapter that
    cannot be served, or not beside this model.
    """
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]  # theirs
    linears = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    head_name = next((name for name, module in linears.items() if module is head), None)
    read = {name: read_adapter(folder, linears, head_name, base_name) for name, folder in folders.items()}
    adapters = Adapters({name: adapter.digest for name, adapter in read.items()})
    targeted = sorted({module for adapter in read.values() for module in adapter.deltas})
    for module in targeted:
        owners = adapters.last_rows if module == head_name else adapters.all_rows
        adapted = AdaptedLinear(linears[module], owners)
        _add_all(adapted, module, read)
        model.set_submodule(module, adapted)
    return adapters


def rows_by_adapter(adapters: Sequence[str | None], device: torch.device) -> dict[str, Rows]:
    """Return the rows of each adapter, as a slice where they lie side by side."""
    found: dict[str, list[int]] = {}
    for row, name in enumerate(adapters):
        if name is not None:
            found.setdefault(name, []).append(row)
    return {name: _compact(rows, device) for name, rows in found.items()}


def _compact(rows: list[int], device: torch.device) -> Rows:
    first, end = rows[0], rows[-1] + 1
    return slice(first, end) if end - first == len(rows) else torch.tensor(rows, device=device)


def _add_all(adapted: AdaptedLinear, module: str, read: Mapping[str, Adapter]) -> None:
    for name, adapter in read.items():
        if (delta := adapter.deltas.get(module)) is not None:
            adapted.add(name, delta.down, delta.scaling * delta.up.float())
