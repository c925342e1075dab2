"""What makes equal tokens give other keys and values in vLLM: the namespaces of an engine."""

from __future__ import annotations

import logging
import platform
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch

from engine_adapter.engine.request import Mode
from engine_adapter.foreign_config import telling_facts
from engine_adapter.foreign_weights import (
    DIGESTS,
    FileFacts,
    adapter_digest,
    adapter_files,
    model_digest,
    named_digest,
)
from engine_adapter.vllm.orders import Scope
from engine_adapter.vllm.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.namespace import Namespace, canonical_json, salt_digest

_log = logging.getLogger(__name__)

_OTHER_FILES = {"dummy", "pt", "npcache", "tensorizer", "sharded_state", "runai_streamer_sharded"}
_ONE_EACH = ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size")
_NUMBERS = {"auto", "float32", "float16", "bfloat16"}


def engine_namespace(
    vllm_config: Any, kv_cache_config: Any, settings: AdapterSettings, version: str
) -> Namespace:
    """Return what all requests of an engine have in common; of rank 0.

    Reads the weights' files unless their digest is remembered. Raises ``ConfigError`` where it cannot be
    told which weights these are, or for what cannot be cut into blocks that stand for themselves.
    """
    _refuse_unfit(vllm_config, kv_cache_config, settings)
    model, cache = vllm_config.model_config, vllm_config.cache_config
    dtype = str(model.dtype).removeprefix("torch.")
    return Namespace(
        weights=_weights(vllm_config, settings),
        model_config=canonical_json(_model_facts(model)),
        compute_dtype=dtype,
        kv_dtype=dtype if cache.cache_dtype == "auto" else str(cache.cache_dtype),
        block_tokens=int(cache.block_size),
        layout=_layout(vllm_config, kv_cache_config, version),
        tp_size=int(vllm_config.parallel_config.tensor_parallel_size),
        label=f"{Path(str(model.model)).name} in vLLM",
    )


def of_scope(namespace: Namespace, scope: Scope, rank: int) -> Namespace:
    """Return the namespace of requests with that adapter and salt, for one tensor-parallel rank."""
    return replace(namespace, lora=scope.lora, salt=scope.salt, tp_rank=rank)


class _Adapter(NamedTuple):
    """An adapter's files as they were read last, their digest, and that of what the engine has loaded."""

    files: FileFacts
    digest: str | None
    loaded: str | None


class Scopes:
    """Tells requests apart by adapter and salt; an adapter's files are read once, and again when they change.

    An adapter whose files have changed without ``load_inplace`` is left alone: the engine may load it anew,
    or compute with what it has.

    ``generation`` is begun anew when the engine forgets all it knew, as after a change of its weights.
    """

    def __init__(self, remembered: Path) -> None:
        self.generation = ""
        self._remembered = remembered
        self._adapters: dict[tuple[str, int, str], _Adapter] = {}

    def of(self, request: Any) -> Scope | None:
        """Return a request's scope; ``None``: its prompt is more than tokens, or its adapter unknown."""
        # A session's prompt may be changed after it was hashed.
        is_plain = not request.mm_features and request.prompt_embeds is None and not request.resumable
        lora = self._adapter(request.lora_request) if request.lora_request else ""
        if not is_plain or lora is None:
            return None
        secrets = [text for text in (self.generation, request.cache_salt or "") if text]
        return Scope(lora, salt_digest("\n".join(secrets)) if secrets else "")

    def _adapter(self, lora: Any) -> str | None:
        about = str(lora.lora_name), int(lora.lora_int_id), str(lora.lora_path)
        files, known = adapter_files(str(lora.lora_path)), self._adapters.get(about)
        if known is None or known.files != files:
            digest = _adapter_digest(str(lora.lora_path), self._remembered)
            known = _Adapter(files, digest, known.loaded if known and known.loaded else digest)
        if getattr(lora, "load_inplace", False):
            known = known._replace(loaded=known.digest)
        self._adapters[about] = known
        return known.digest if known.digest == known.loaded else None


def remembered_digests(settings: AdapterSettings) -> Path:
    """Return the file that remembers digests of weights."""
    return Path(settings.cache_path).expanduser() / DIGESTS


def _adapter_digest(folder: str, remembered: Path) -> str | None:
    try:
        return adapter_digest(folder, remembered)
    except ConfigError as error:
        _log.warning("requests with the adapter in %s are neither loaded nor stored: %s", folder, error)
        return None


def _weights(vllm_config: Any, settings: AdapterSettings) -> str:
    if settings.weights:
        return named_digest(settings.weights)
    model, kind = vllm_config.model_config, str(vllm_config.load_config.load_format)
    if kind in _OTHER_FILES:
        raise ConfigError("weights", f"load format {kind} is not read: say what they are in this setting")
    return model_digest(str(model.model), getattr(model, "revision", None), remembered_digests(settings))


def _model_facts(model: Any) -> dict[str, Any]:
    facts = telling_facts(model.hf_text_config.to_dict())
    facts["vllm_quantization"] = str(model.quantization)
    facts["vllm_disable_sliding_window"] = bool(getattr(model, "disable_sliding_window", False))
    # These positions are embedded otherwise where prompts may be longer.
    if any(kind in repr(facts) for kind in ("longrope", "dynamic")):
        facts["vllm_max_model_len"] = int(model.max_model_len)
    return facts


def _layout(vllm_config: Any, kv_cache_config: Any, version: str) -> str:
    """Say how vLLM lays keys and values out in a block: its version and backend, the machine, the shapes."""
    specs = [(list(group.layer_names), str(group.kv_cache_spec)) for group in kv_cache_config.kv_cache_groups]
    facts = (
        f"vllm {version}", str(getattr(vllm_config, "attention_config", "")), _machine(vllm_config),
        str(kv_cache_config.kv_cache_layout), repr(specs),
    )  # fmt: skip
    return f"vllm {version}, {blake2b(repr(facts).encode(), digest_size=16).hexdigest()}"


def _machine(vllm_config: Any) -> str:
    kind = str(vllm_config.device_config.device_type)
    if kind != "cpu":
        return f"{kind} {torch.cuda.get_device_name() if torch.cuda.is_available() else ''}"
    has_tiles = torch.cpu._is_amx_tile_supported()
    return f"cpu {platform.machine()} amx={has_tiles} avx512={torch.cpu._is_avx512_supported()}"


def _refuse_unfit(vllm_config: Any, kv_cache_config: Any, settings: AdapterSettings) -> None:
    parallel, cache = vllm_config.parallel_config, vllm_config.cache_config
    for name in _ONE_EACH:
        if getattr(parallel, name, 1) > 1:
            raise ConfigError(name, "prefixes are not kept with more than 1")
    if vllm_config.kv_transfer_config.kv_role != "kv_both":
        raise ConfigError("kv_role", "must be kv_both: an engine loads what it or another has stored")
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ConfigError("model", "its layers keep caches of several kinds, which are not kept yet")
    if not _keeps_all_tokens(groups[0].kv_cache_spec):
        raise ConfigError(
            "model", "vLLM drops what its attention window has passed (--disable-sliding-window)"
        )
    if "fp8" in str(cache.cache_dtype) and getattr(cache, "calculate_kv_scales", False):
        raise ConfigError("calculate_kv_scales", "scales differ from start to start: keep them in the model")
    if str(cache.cache_dtype) not in _NUMBERS and settings.mode == Mode.VERIFY.value:
        raise ConfigError("mode", f"verify compares numbers, and {cache.cache_dtype} keeps them as codes")


def _keeps_all_tokens(spec: Any) -> bool:
    """Say whether a request keeps all its blocks: elsewhere its table has block 0 for those it dropped."""
    of_layers = getattr(spec, "kv_cache_specs", {"": spec}).values()
    kinds = [{kind.__name__ for kind in type(each).__mro__} for each in of_layers]
    return all("FullAttentionSpec" in names and "RSWASpec" not in names for names in kinds)
