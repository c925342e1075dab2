"""Linear layers whose weights lie in memory in the order in which a CPU's matrix units read them.

oneDNN brings a plain matrix of 16-bit weights into that order anew at each call, which costs as much as
computing with it for few tokens. Here it is done once, and the order is kept beside the weights.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedModel

# The operations that torch's own compiler packs weights with.
_mkldnn = torch.ops.mkldnn


class PackedLinear(nn.Linear):
    """A linear module that computes with a packed copy of its weights. Its parameters are those of ``base``.

    The copy takes the same bytes again; ``pack`` renews it after the weights were changed in place.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__(base.in_features, base.out_features, base.bias is not None, device="meta")
        self.weight, self.bias = base.weight, base.bias
        self.pack()

    def pack(self) -> None:
        """Make the copy from the weights as they are now."""
        self._packed: torch.Tensor = _mkldnn._reorder_linear_weight(self.weight.detach(), None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return out


def is_packing_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Say whether packed weights pay: in bfloat16, on a CPU that computes in it."""
    if device.type != "cpu" or dtype != torch.bfloat16 or not torch._C._has_mkldnn:
        return False
    return bool(_mkldnn._is_mkldnn_bf16_supported())


def pack_linears(model: PreTrainedModel) -> None:
    """Let every linear module of ``model`` compute with packed weights."""
    plain = {name: module for name, module in model.named_modules() if type(module) is nn.Linear}
    for name, module in plain.items():
        model.set_submodule(name, PackedLinear(module))


def pack_again(model: PreTrainedModel) -> None:
    """Bring the packed copies up to date with weights that were changed in place."""
    for module in model.modules():
        if isinstance(module, PackedLinear):
            module.pack()
