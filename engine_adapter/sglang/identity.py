"""What SGLang's page hashes leave out, put into namespaces: weights, dtype, layout, shapes, ranks, salt.

::

    its key    sha256 over request salt and adapter, parent page, tokens: 64 hexadecimal digits
    ours       namespace (16 bytes) -----> key (16 bytes) = blake2b(its key, key=namespace)
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import torch

from engine_adapter.sglang.served import Served
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.keys import KEY_BYTES
from kvstore.namespace import Namespace, canonical_json

KV = "kv"
"""SGLang's name of the pool that every model has."""
_MAMBA = "mamba"
_SHAPES = (
    "page_size", "layer_num", "target_layer_num", "start_layer", "end_layer", "head_num", "head_dim",
    "v_head_dim", "head_group_num", "kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "size_per_token",
    "storage_format_tag", "dsa_kv_cache_store_fp8", "dcp_size", "dcp_rank",
)  # fmt: skip


def pool_namespace(
    config: Any, pool: Any, name: str, how: str, page_bytes: int, served: Served, weights: str, salt: str
) -> Namespace:
    """Return the namespace of a host pool's pages.

    ``config`` is SGLang's ``HiCacheStorageConfig``, ``how`` says in which order a page's pieces are stored,
    ``weights`` is the digest of all that ``served`` computes with.
    """
    shapes = {"class": type(pool).__name__, "page_bytes": page_bytes, **_shapes(pool), **_dtypes(pool)}
    shape_digest = blake2b(canonical_json(shapes).encode(), digest_size=8).hexdigest()
    is_replicated = config.is_mla_model and not _is_of_each_rank(name, pool)
    facts = {
        "pool": name, "shapes": shapes, "is_mla": bool(config.is_mla_model),
        "pipeline": [config.pp_rank, config.pp_size], "context": [config.attn_cp_rank, config.attn_cp_size],
        "decode_context": [config.dcp_rank, config.dcp_size], **served.facts(),
    }  # fmt: skip
    return Namespace(
        weights=weights,
        model_config=canonical_json(facts),
        compute_dtype=served.compute_dtype(),
        kv_dtype=_dtype_name(pool),
        block_tokens=int(pool.page_size),
        layout=f"sglang {served.version} {pool.layout} {how} {shape_digest}",
        tp_rank=0 if is_replicated else int(config.tp_rank),
        tp_size=int(config.tp_size),
        label=f"{config.model_name or 'a model'} in SGLang, {name}",
    ).with_salt(salt)


def scoped(namespace: Namespace, keys: Iterable[str]) -> list[bytes]:
    """Return the store's keys for SGLang's."""
    digest = namespace.digest
    return [blake2b(key.encode(), digest_size=KEY_BYTES, key=digest).digest() for key in keys]


def rank_name(config: Any, replica: int) -> str:
    """Return what tells this process from all others of its server; ``replica`` is which it is of several."""
    ranks = {"tp": config.tp_rank, "pp": config.pp_rank, "cp": config.attn_cp_rank, "dp": config.dp_rank}
    if replica:
        ranks["replica"] = replica
    return "-".join(f"{kind}{rank}" for kind, rank in ranks.items())


def refuse_unfit(config: Any, settings: AdapterSettings) -> None:
    """Raise ``ConfigError`` for what could never hit, or be right."""
    if config.is_mla_model and config.tp_size > 1 and not settings.store:
        raise ConfigError(
            "store", "one rank stores what all of them load with this model: run `prefixd serve`"
        )
    if config.dcp_size > 1:
        raise ConfigError("dcp_size", "pages are not kept with more than 1")
    if config.should_split_heads:
        raise ConfigError("tp_lcm_size", "pages are not split by heads: leave this setting out")


def _shapes(pool: Any) -> dict[str, int | str | bool]:
    named = {name: getattr(pool, name, None) for name in _SHAPES}
    return {name: value for name, value in named.items() if isinstance(value, (int, str))}


def _dtypes(pool: Any) -> dict[str, str]:
    """Return every dtype that a pool names: states of Mamba have one for each of their parts."""
    named = vars(pool).items()
    return {name: str(value) for name, value in named if isinstance(value, torch.dtype)}


def _is_of_each_rank(name: str, pool: Any) -> bool:
    """Say whether ranks differ in a pool even where they hold the same keys and values.

    States of Mamba are split between them, and so are the heads of a draft model that has some.
    """
    return name == _MAMBA or getattr(pool, "head_num", None) is not None


def _dtype_name(pool: Any) -> str:
    return str(getattr(pool, "dtype", "")).removeprefix("torch.")
