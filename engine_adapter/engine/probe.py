"""What a loaded model asks of attention and of its cache, found by running one token through it.

A configuration tells it only to those who know the family: fields are passed over where a flag is
off, or count for some layers. So the model itself is asked, and refused where it asks for more than
the engine gives. Which keys a query sees is read from the masks, since transformers' own arithmetic
goes by them.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedModel

from backends.kv_shape import KVShape
from engine_adapter.engine.attention import ATTENTION_NAME, AttentionKind, Mask, PagedCache, register_as
from engine_adapter.engine.kv_forms import Kept, PlainLayer
from kvstore.errors import ModelRefusedError, one_line

PROBE_NAME = "prefixd_probe"
# Handed on to every attention, and without effect on ours: there is no dropout in serving, positions
# are in the keys already, and what is causal and how far it reaches is said by the mask.
_WITHOUT_EFFECT = frozenset(
    {"dropout", "is_causal", "output_router_logits", "position_ids", "sliding_window", "use_cache"}
)


def attention_kinds(name: str, model: PreTrainedModel, shape: KVShape) -> tuple[AttentionKind, ...]:
    """Return the distinct kinds of attention in the layers of ``model``, in the order they appear.

    Runs one token, which reads all weights. Raises ``ModelRefusedError`` with ``name`` where a layer
    keeps anything else than keys and values of ``shape``, or attends in a way the engine does not.
    """
    register_as(PROBE_NAME, _probed_attention)
    model.set_attn_implementation(PROBE_NAME)
    layer = torch.zeros(2, 1, shape.num_kv_heads, shape.head_dim, dtype=model.dtype, device=model.device)
    probe = _Probe(shape.num_layers, layer)
    first = torch.zeros(1, dtype=torch.int64, device=model.device)
    try:
        with torch.inference_mode():
            model(
                input_ids=first[None],
                position_ids=first[None],
                cache=probe,
                use_cache=True,
                logits_to_keep=first,
                probe=probe,
            )
        probe.check_layers()
    except _UnservableError as error:
        raise ModelRefusedError(name, str(error)) from None
    except Exception as error:  # A model of any code is run here for the first time: it may raise anything.
        raise ModelRefusedError(name, f"it does not run on paged attention: {one_line(error)}") from error
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
    return tuple(dict.fromkeys(probe.asked))


class _UnservableError(Exception):
    """Says what a layer asks for that the engine does not give."""


class _Probe(PagedCache):
    """The cache of one token, which notes what the layers do."""

    def __init__(self, num_layers: int, layer: torch.Tensor) -> None:
        self._layer = layer[0], layer[1]
        slots = torch.zeros(1, dtype=torch.int64, device=layer.device)
        super().__init__([PlainLayer(*self._layer)] * num_layers, slots)
        self._expected = list(range(num_layers))
        self._written: list[int] = []
        self.asked: list[AttentionKind] = []

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer_idx: int, *_args: object, **_kwargs: object
    ) -> tuple[Kept, Kept]:
        for tensor, kept in zip((key, value), self._layer, strict=True):
            if tensor[0].transpose(0, 1).shape != kept.shape:
                wanted = " heads of ".join(str(size) for size in kept.shape[1:])
                raise _UnservableError(
                    f"layer {layer_idx} keeps {tensor.shape[1]} heads of {tensor.shape[3]}, not {wanted}"
                )
        self._written.append(layer_idx)
        return super().update(key, value, layer_idx)

    def note(self, key: torch.Tensor, value: torch.Tensor, kind: AttentionKind) -> None:
        """Note one call of attention, to these keys and values."""
        if key is not self._layer[0] or value is not self._layer[1]:
            raise _UnservableError("its attention reads other keys and values than those it keeps")
        self.asked.append(kind)

    def check_layers(self) -> None:
        """Raise unless every layer has kept keys and values once and attended once."""
        if self._written != self._expected or len(self.asked) != len(self._expected):
            raise _UnservableError(
                f"of its {len(self._expected)} layers {len(set(self._written))} keep keys and values, "
                f"and {len(self.asked)} attend to them"
            )


def _probed_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Mask,
    scaling: float | None = None,
    *,
    probe: _Probe,
    softcap: float | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    needed = {name for name, value in others.items() if value is not None and value is not False}
    if unknown := sorted(needed - _WITHOUT_EFFECT):
        raise _UnservableError(f"its attention needs {unknown[0]}, which the engine does not honour")
    if scaling is None:
        raise _UnservableError("its attention does not say how scores are scaled")
    if softcap is not None and not softcap > 0:
        raise _UnservableError(f"its attention caps scores at {softcap}, which must be above 0")
    if not _sees_its_window(attention_mask):
        raise _UnservableError("its queries see other keys than the last ones, all or a fixed number")
    probe.note(key, value, AttentionKind(attention_mask.window, softcap))
    return query.transpose(1, 2), None


def _sees_its_window(mask: Mask) -> bool:
    """Whether a query sees its ``mask.window`` last keys or all, and nothing else; asked at the edges."""
    window = 3 if mask.window is None else mask.window
    if window < 1:
        return False
    query = torch.tensor(4 * window + 1)
    keys = torch.stack([query + 1, query, query - window + 1, query - window, torch.tensor(0)])
    expected = (keys <= query) if mask.window is None else (keys <= query) & (keys > query - window)
    return torch.equal(mask.sees(0, 0, query, keys), expected)
