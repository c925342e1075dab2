"""Loading a model folder for serving, and saying what shapes its keys and values."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from backends.kv_shape import KVShape
from engine_adapter.engine.attention import ATTENTION_NAME, AttentionKind, register_attention
from engine_adapter.engine.checkpoint import check_checkpoint
from engine_adapter.engine.formats import Formats, choose_formats, dtype_name
from engine_adapter.engine.key_scales import measure_key_scales
from engine_adapter.engine.kv_forms import form_name, scale_dtype_of
from engine_adapter.engine.lora import Adapters, load_adapters
from engine_adapter.engine.packed import is_packing_faster, pack_again, pack_linears
from engine_adapter.engine.probe import attention_kinds
from engine_adapter.engine.support import Config, refusal
from kvstore.errors import ModelRefusedError, one_line
from kvstore.namespace import Namespace, canonical_json
from kvstore.weights import weights_digest

# What a configuration says beyond the shape of its keys and values. A field that is not known here
# stays in the namespace: at worst, equal models do not share blocks.
_NOT_IN_NAMESPACE = frozenset(
    {
        "_attn_implementation", "_model_name_or_path", "_name_or_path", "architectures", "bos_token_id",
        "chunk_size_feed_forward", "dtype", "eos_token_id", "id2label", "initializer_range", "label2id",
        "output_attentions", "output_hidden_states", "pad_token_id", "problem_type", "return_dict",
        "transformers_version", "unk_token_id", "use_cache",
    }
)  # fmt: skip


@dataclass
class LoadedModel:
    """A model ready to run over a pool, and the facts that the engine needs of it.

    ``kv_shape`` is the shape of one block, ``num_heads`` counts query heads,
    ``attention_kinds`` are the distinct ones of its layers, ``context_tokens`` is the longest sequence
    the model takes, ``namespace`` the identity of its keys and values. Token ids are below
    ``vocab_size``. ``adapters`` are those that requests may choose, ``key_scales`` those of keys that are
    kept in 8 bits.
    """

    name: str
    model: PreTrainedModel
    device: torch.device
    compute_dtype: torch.dtype
    kv_shape: KVShape
    num_heads: int
    attention_kinds: tuple[AttentionKind, ...]
    context_tokens: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    namespace: Namespace
    adapters: Adapters = field(default_factory=Adapters)
    key_scales: torch.Tensor | None = None

    def model_changed(self) -> Namespace:
        """Take note that the weights in memory were changed, and return the namespace they have now.

        Reads all weights. What was stored before is never found under the new namespace.
        """
        pack_again(self.model)
        self.namespace = replace(self.namespace, weights=digest_in_memory(self.model))
        return self.namespace


def load_model(
    folder: Path,
    *,
    block_tokens: int = 16,
    device: str = "cpu",
    compute_dtype: str = "auto",
    kv_dtype: str = "auto",
    digests: Path | None = None,
    loras: Mapping[str, Path] | None = None,
    cpu_weights: str = "auto",
) -> LoadedModel:
    """Load a Hugging Face folder with safetensors; nothing is fetched from anywhere.

    ``compute_dtype`` is ``auto`` (float32 on a CPU, else bfloat16), ``float32``, ``bfloat16`` or
    ``float16``; ``kv_dtype`` likewise, or ``int8`` or ``fp8``, where ``auto`` is the compute dtype. For
    keys in 8 bits the model reads a sample, which takes some seconds on a CPU. ``digests`` is a file that
    remembers digests of weights between starts, ``loras`` are folders of adapters, by name. With
    ``cpu_weights`` ``auto`` a packed copy of the weights is kept where computing with it is faster; with
    ``plain`` it is not. Raises ``ModelRefusedError`` for a folder that is broken, a model or an adapter that
    cannot be served, ``ConfigError`` for settings that cannot be used.
    """
    formats = choose_formats(device, compute_dtype, kv_dtype)
    check_checkpoint(folder)
    with _quietly():
        config = _read_config(folder)
        facts = config.to_dict()
        if reason := refusal(facts):
            raise ModelRefusedError(str(folder), reason)
        model = _read_weights(folder, config, formats)
        kv_shape = kv_shape_of(config, block_tokens, formats.kept)
        kinds = attention_kinds(str(folder), model, kv_shape)
    key_scales = _key_scales(folder, model, kv_shape)
    adapters = load_adapters(model, loras or {}, folder.name)
    if cpu_weights == "auto" and is_packing_faster(formats.device, formats.compute):
        pack_linears(model)
    return LoadedModel(
        name=folder.name,
        model=model,
        device=formats.device,
        compute_dtype=formats.compute,
        kv_shape=kv_shape,
        num_heads=config.num_attention_heads,
        attention_kinds=kinds,
        context_tokens=config.max_position_embeddings,
        vocab_size=config.vocab_size,
        eos_token_ids=_eos_token_ids(model),
        namespace=Namespace(
            weights=weights_digest(folder, digests),
            model_config=kv_config(facts),
            compute_dtype=dtype_name(formats.compute),
            kv_dtype=dtype_name(formats.kept),
            block_tokens=block_tokens,
            kv_form=form_name(kv_shape, key_scales),
            layout=kv_shape.layout,
            label=folder.name,
        ),
        adapters=adapters,
        key_scales=key_scales,
    )


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a model folder. Raises ``ModelRefusedError``."""
    try:
        with _quietly():
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # A file of any content meets foreign code: it may raise anything.
        reason = f"its tokenizer is missing or broken: {one_line(error)}"
        raise ModelRefusedError(str(folder), reason) from error
    return tokenizer


def kv_config(config: Config) -> str:
    """Return what of a configuration shapes keys and values, as canonical JSON."""
    return canonical_json({name: value for name, value in config.items() if name not in _NOT_IN_NAMESPACE})


def digest_in_memory(model: torch.nn.Module) -> str:
    """Return a hex digest over names, dtypes, shapes and bytes of all weights as they are now."""
    digest = blake2b(digest_size=16, person=b"prefixd-memory")
    for name, parameter in [*model.named_parameters(), *model.named_buffers()]:
        tensor = parameter.detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_config(folder: Path) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # A file of any content meets foreign code: it may raise anything.
        raise ModelRefusedError(str(folder), f"config.json is not understood: {one_line(error)}") from error
    return config


def _read_weights(folder: Path, config: PretrainedConfig, formats: Formats) -> PreTrainedModel:
    register_attention()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=formats.compute,
            attn_implementation=ATTENTION_NAME,
            local_files_only=True,
            use_safetensors=True,
            # Told below with the tensor's name; transformers only logs it.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # Likewise.
        raise ModelRefusedError(str(folder), f"its weights cannot be read: {one_line(error)}") from error
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ModelRefusedError(str(folder), f"its weights lack {len(missing)} tensors, {missing[0]} for one")
    for name, found, wanted in sorted(report["mismatched_keys"]):
        shapes = f"{name} is {list(found)}, not {list(wanted)}"
        raise ModelRefusedError(str(folder), f"its weights are not those of config.json: {shapes}")
    if left := _of_further_layers(report["unexpected_keys"], config.num_hidden_layers):
        reason = f"its weights have more layers than config.json asks for: {left[0]} is left over"
        raise ModelRefusedError(str(folder), reason)
    return cast("PreTrainedModel", model.to(formats.device).eval())


def _of_further_layers(names: Iterable[str], num_layers: int) -> list[str]:
    """Return the tensors of layers behind the last; others that are left over change nothing."""
    layers = ((name, re.search(r"\blayers\.(\d+)\.", name)) for name in names)
    return sorted(name for name, layer in layers if layer and int(layer[1]) >= num_layers)


def kv_shape_of(config: Any, block_tokens: int, dtype: torch.dtype) -> KVShape:
    """Return the shape of one block of a model with this configuration, kept in ``dtype``."""
    heads = config.num_attention_heads
    return KVShape(
        num_layers=config.num_hidden_layers,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        block_tokens=block_tokens,
        dtype=dtype,
        scale_dtype=scale_dtype_of(dtype),
    )


def _key_scales(folder: Path, model: PreTrainedModel, shape: KVShape) -> torch.Tensor | None:
    if shape.scale_dtype is None:
        return None
    config: Any = model.config
    encode = None
    with suppress(ModelRefusedError):  # whoever needs the tokenizer is told
        encode = read_tokenizer(folder).encode
    return measure_key_scales(model, shape, config.max_position_embeddings, config.vocab_size, encode)


def _eos_token_ids(model: PreTrainedModel) -> frozenset[int]:
    found: set[int] = set()
    for config in (model.config, model.generation_config):
        ids = getattr(config, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or ())
    return frozenset(found)


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep transformers' bars and warnings off the terminal, and leave its settings as they were."""
    bars, verbosity = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
    transformers_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]  # theirs
