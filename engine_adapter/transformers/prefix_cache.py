"""Prefixes of a model's prompts, kept in a store and given back to any script that uses transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from engine_adapter.engine.formats import dtype_name
from engine_adapter.engine.models import digest_in_memory, kv_config, kv_shape_of
from engine_adapter.engine.request import Mode
from engine_adapter.engine.support import refusal
from engine_adapter.engine.verifying import is_close
from engine_adapter.transformers.blocks import States, empty_states, read_block, write_block
from engine_adapter.transformers.loads import head_of
from engine_adapter.transformers.opening import open_here
from engine_adapter.transformers.reused_cache import ReusedCache
from engine_adapter.transformers.rows import Row, pads_of
from kvstore.connect import connect
from kvstore.errors import ModelRefusedError, RequestError
from kvstore.interface import BlockStore
from kvstore.loading import LoadedBlock
from kvstore.namespace import Namespace

_LOAD_S = 10.0


@dataclass(frozen=True, slots=True)
class ReuseStatistics:
    """Counts since the start: prompts, their tokens, those reused; blocks stored, compared, found wrong."""

    num_prompts: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    num_stored: int = 0
    num_compared: int = 0
    num_wrong: int = 0


class PrefixCache:
    """Makes a script's prompts begin where the store's prefixes end. One thread at a time.

    ``store`` is the address of a server (``unix:///path``) or a store in this process; without one the
    prefixes are kept in memory here. ``mode`` is ``off``, ``observe`` (look up and store, reuse nothing),
    ``verify`` (compute all and compare with what is stored) or ``serve``; it may be changed at any time.
    ``salt`` keeps tenants apart. Weights are told apart by their content, which is read once: after a change
    of them begin anew.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        store: BlockStore | str | None = None,
        *,
        token: str | None = None,
        mode: Mode | str = Mode.SERVE,
        block_tokens: int = 16,
        salt: str = "",
        ttl_s: float | None = None,
    ) -> None:
        """Read all weights once, and connect.

        Raises ``ModelRefusedError`` for a model whose prefixes cannot be kept, ``ConfigError`` for an odd
        address, ``AccessError`` for a wrong token.
        """
        self.model = model
        self.mode = Mode(mode)
        self.shape = kv_shape_of(_servable(model), block_tokens, model.dtype)
        self.statistics = ReuseStatistics()
        self._ttl_s = ttl_s
        if store is None:
            store = open_here(self.shape.block_bytes)
        self.store: BlockStore = connect(store, token) if isinstance(store, str) else store
        self._namespace = self.store.own_namespace(_namespace(model, self.shape.layout, block_tokens, salt))
        self._witnesses: dict[bytes, LoadedBlock] = {}
        self._hook = model.register_forward_pre_hook(self._hear, with_kwargs=True)

    def cache(
        self, inputs: Mapping[str, torch.Tensor] | torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> ReusedCache:
        """Return the cache to call the model with, once, for prompts ``[rows, columns]`` of token ids.

        ``inputs`` is what a tokenizer returns, or its ``input_ids``. The last token is never reused. Blocks
        while prefixes are loaded. Raises ``RequestError`` for prompts that are not padded on the left.
        """
        input_ids = inputs if isinstance(inputs, torch.Tensor) else inputs["input_ids"]
        mask = attention_mask if isinstance(inputs, torch.Tensor) else inputs.get("attention_mask")
        if input_ids.ndim != 2 or not input_ids.numel():
            raise RequestError("input_ids", "must have the shape [prompts, tokens], with a token at least")
        pads = pads_of(mask, input_ids)
        rows = [
            Row(pad, ids[pad:], self._namespace.digest, self.shape.block_tokens)
            for pad, ids in zip(pads, input_ids.tolist(), strict=True)
        ]
        begun = ReusedCache(self, rows)
        if self.mode is not Mode.OFF:
            begun.begin_with(self._reusable(rows, input_ids.shape[1] - 1))
        num_reused = sum(max(0, begun.num_reused - row.pad) for row in rows)
        num_tokens = sum(len(row.tokens) for row in rows)
        self._count(num_prompts=len(rows), prompt_tokens=num_tokens, reused_tokens=num_reused)
        return begun

    def offer(self, row: Row, index: int, block: Sequence[States]) -> None:
        """Store block ``index`` of a row; in mode verify compare it with what is stored."""
        if self.mode is Mode.OFF or block[0][0].dtype != self.shape.dtype:
            return
        key = row.keys[index]
        if (witness := self._witnesses.pop(key, None)) is not None:
            self._compare(key, block, witness)
            return
        memory = self.store.reserve(
            self._namespace, key, row.parent(index), self.shape.block_bytes,
            first_token=index * self.shape.block_tokens, ttl_s=self._ttl_s,
        )  # fmt: skip
        if memory is not None:
            write_block(self.shape, block, memory.view)
            memory.commit()
            self._count(num_stored=1)

    def close(self) -> None:
        """Leave the model as it was, and close the store."""
        self._hook.remove()
        self._dismiss_witnesses()
        self.store.close()

    def _hear(self, _model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before each forward call: tell one of our caches which tokens it is about."""
        cache = kwargs.get("cache", kwargs.get("past_key_values"))
        if not isinstance(cache, ReusedCache):
            return
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        if input_ids is None:
            raise RequestError("input_ids", "must be given: prefixes are known by tokens, not by embeddings")
        cache.feed(input_ids, kwargs.get("attention_mask"), kwargs.get("position_ids"))

    def _reusable(self, rows: list[Row], most_columns: int) -> list[States]:
        """Return each layer's keys and values of the first columns, as far as all rows have them."""
        ends_s = self.store.now_s() + _LOAD_S
        heads = [head_of(self.store, row.keys, self._ttl_s, ends_s, self.shape.block_bytes) for row in rows]
        if self.mode is Mode.VERIFY:
            self._summon_witnesses(rows, heads)
            return []
        try:
            return self._states(rows, heads, most_columns) if self.mode is Mode.SERVE else []
        finally:
            for head in heads:
                for block in head:
                    block.release()

    def _states(self, rows: list[Row], heads: list[list[LoadedBlock]], most_columns: int) -> list[States]:
        step = self.shape.block_tokens
        ends = [row.pad + len(head) * step for row, head in zip(rows, heads, strict=True)]
        num_columns = min([*ends, most_columns])
        if num_columns <= 0:
            return []
        states = empty_states(self.shape, len(rows), num_columns, self.model.device)
        for number, (row, head) in enumerate(zip(rows, heads, strict=True)):
            row.num_offered = len(head)
            for column, block in zip(range(row.pad, num_columns, step), head, strict=False):
                read_block(self.shape, block.data, states, number, column)
        return states

    def _summon_witnesses(self, rows: list[Row], heads: list[list[LoadedBlock]]) -> None:
        """Keep what was loaded until it has been computed too."""
        self._dismiss_witnesses()
        for row, head in zip(rows, heads, strict=True):
            for key, block in zip(row.keys, head, strict=False):
                if key in self._witnesses:
                    block.release()
                self._witnesses.setdefault(key, block)

    def _dismiss_witnesses(self) -> None:
        for witness in self._witnesses.values():
            witness.release()
        self._witnesses.clear()

    def _compare(self, key: bytes, block: Sequence[States], witness: LoadedBlock) -> None:
        computed = memoryview(bytearray(self.shape.block_bytes))
        write_block(self.shape, block, computed)
        is_right = is_close(self.shape, computed, witness.data)
        witness.release()
        self._count(num_compared=1, num_wrong=not is_right)
        if not is_right:
            self.store.quarantine(key)

    def _count(self, **more: int) -> None:
        now = {name: getattr(self.statistics, name) + amount for name, amount in more.items()}
        self.statistics = replace(self.statistics, **now)


def _servable(model: PreTrainedModel) -> Any:
    """Return the model's configuration. Raises ``ModelRefusedError``."""
    config: Any = model.config
    reason = refusal(config.to_dict())
    if getattr(model, "peft_config", None):
        reason = "it has adapters: merge them first (merge_and_unload), or serve them with prefixd serve"
    if reason:
        raise ModelRefusedError(_name(model), reason)
    return config


def _namespace(model: PreTrainedModel, layout: str, block_tokens: int, salt: str) -> Namespace:
    config: Any = model.config
    dtype = dtype_name(model.dtype)
    return Namespace(
        weights=digest_in_memory(model),
        model_config=kv_config(config.to_dict()),
        compute_dtype=dtype,
        kv_dtype=dtype,
        block_tokens=block_tokens,
        layout=layout,
        label=_name(model),
    ).with_salt(salt)


def _name(model: PreTrainedModel) -> str:
    """Return what the model is called: on the Hub, or its folder, as the server calls it; no path."""
    name = str(getattr(model, "name_or_path", ""))
    return (Path(name).resolve().name if name and Path(name).is_dir() else name) or type(model).__name__
