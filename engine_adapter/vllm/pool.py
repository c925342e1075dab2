"""vLLM's paged pool: whole blocks out of it, and into it, as the attention backend lays them out."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch

from engine_adapter.closeness import are_close
from kvstore.errors import ConfigError


class Pool:
    """The layers' caches of one worker, cut into blocks.

    At rest a block is the bytes of its layers, one after the other, in the order of vLLM's layers. Inside a
    layer they lie as the attention backend wants them: the namespace names that layout.
    """

    def __init__(self, caches: Mapping[str, torch.Tensor], num_blocks: int) -> None:
        """Take the caches by layer. Raises ``ConfigError`` for those that are not cut into ``num_blocks``."""
        self._layers = [_by_block(name, cache, num_blocks) for name, cache in _distinct(caches).items()]
        self._sizes = [prod(layer.shape[1:]) * layer.element_size() for layer in self._layers]
        self.block_bytes = sum(self._sizes)

    def read(self, block_id: int, out: memoryview) -> None:
        """Copy a block to ``out`` (``block_bytes``)."""
        for layer, kept in zip(self._layers, self._parts(out), strict=True):
            kept.copy_(layer[block_id])

    def write(self, block_id: int, data: memoryview) -> None:
        """Copy a block at rest (``block_bytes``) to the pool."""
        for layer, kept in zip(self._layers, self._parts(data), strict=True):
            layer[block_id].copy_(kept)

    def is_close(self, block_id: int, stored: memoryview) -> bool:
        """Say whether a block is the stored one but for rounding, layer by layer."""
        for layer, kept in zip(self._layers, self._parts(stored), strict=True):
            computed = layer[block_id].cpu()
            if not are_close(computed.reshape(1, -1), kept.reshape(1, -1), layer.dtype):
                return False
        return True

    def _parts(self, data: memoryview) -> list[torch.Tensor]:
        if len(data) != self.block_bytes:
            raise ValueError(f"a block of {len(data)} bytes, not {self.block_bytes}")
        parts, start = list[torch.Tensor](), 0
        whole = torch.frombuffer(data, dtype=torch.uint8)
        for layer, nbytes in zip(self._layers, self._sizes, strict=True):
            parts.append(whole[start : start + nbytes].view(layer.dtype).view(layer.shape[1:]))
            start += nbytes
        return parts


def _distinct(caches: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Leave layers out that share another layer's cache."""
    seen, distinct = set[int](), dict[str, torch.Tensor]()
    for name, cache in caches.items():
        if not isinstance(cache, torch.Tensor):
            raise ConfigError("kv_connector", f"layer {name} keeps something else than keys and values")
        if cache.data_ptr() not in seen:
            seen.add(cache.data_ptr())
            distinct[name] = cache
    return distinct


def _by_block(name: str, cache: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Return the cache with a first dimension of ``num_blocks``."""
    if num_blocks <= 0 or cache.shape[0] % num_blocks:
        shape = tuple(cache.shape)
        raise ConfigError(
            "kv_connector", f"the cache of {name}, {shape}, is not cut into {num_blocks} blocks"
        )
    if cache.shape[0] == num_blocks:
        return cache
    return cache.view(num_blocks, cache.shape[0] // num_blocks, *cache.shape[1:])
