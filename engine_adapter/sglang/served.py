"""What SGLang's process says of the model it serves."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine_adapter.foreign_config import plain, telling_facts
from engine_adapter.foreign_weights import DIGESTS, adapter_digest, model_digest, named_digest
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.namespace import canonical_json

# What of the server's arguments shapes keys and values, or their place in them.
ARGUMENTS = (
    "dtype", "quantization", "quantization_param_path", "modelopt_quant", "quantize_and_serve",
    "rl_quant_profile", "kv_cache_dtype", "prefill_kv_cache_dequant_dtype", "enable_quant_communications",
    "qsa_indexer_dtype", "enable_deepseek_v4_fp4_indexer", "mamba_ssm_dtype",
    "enable_mamba_cache_stochastic_rounding", "enable_int8_mamba_checkpoint", "model_impl", "dllm_algorithm",
    "json_model_override_args", "speculative_algorithm", "speculative_draft_model_quantization",
    "speculative_draft_kv_cache_dtype", "disable_hybrid_swa_memory", "attention_backend",
    "prefill_attention_backend", "context_length", "kt_weight_path", "kt_method", "enable_w4a4_mxfp4_megamoe",
    "flashinfer_mxfp4_moe_precision",
)  # fmt: skip


class Served:
    """The model of this process, as its server's arguments and its configuration have it.

    ``config`` is the model's configuration, ``arguments`` are SGLang's ``ServerArgs``, ``replica`` is the
    number of this server among those that SGLang runs side by side (``--dp-size``).
    """

    def __init__(
        self, arguments: Any, config: Mapping[str, Any], engine_version: str, replica: int = 0
    ) -> None:
        self.version = engine_version
        self.replica = replica
        self._arguments = arguments
        self._config = config

    @classmethod
    def here(cls) -> Served:
        """Return that of this process. Raises ``ConfigError`` where SGLang has published none."""
        from sglang.srt.runtime_context import (  # noqa: PLC0415 - needs SGLang
            get_parallel,
            get_server_args,
            process_model_config,
        )

        try:
            config, replica = process_model_config().hf_config.to_dict(), get_parallel().dp_rank or 0
            return cls(get_server_args(), config, version("sglang"), replica)
        except (ValueError, AttributeError, OSError) as error:
            raise ConfigError("model", f"SGLang does not say which one it serves here: {error}") from error

    def weights(self, settings: AdapterSettings) -> str:
        """Return the digest of all weights that shape keys and values: the model's, a draft's, adapters'.

        So do scales of keys and values. Reads the files of weights unless they are remembered. Raises
        ``ConfigError`` where it cannot be told.
        """
        if settings.weights:
            return named_digest(settings.weights)
        if self._argument("load_format") == "dummy":
            raise ConfigError("weights", "dummy weights differ from start to start: name them here")
        remembered = Path(settings.cache_path).expanduser() / DIGESTS
        digests = [model_digest(str(self._argument("model_path")), self._argument("revision"), remembered)]
        draft = self._argument("speculative_draft_model_path")
        if draft:
            revision = self._argument("speculative_draft_model_revision")
            digests.append(model_digest(str(draft), revision, remembered))
        digests += [adapter_digest(path, remembered) for path in self._adapters()]
        scales = self._argument("quantization_param_path")
        if scales:
            digests.append(_file_digest(Path(scales)))
        return digests[0] if len(digests) == 1 else named_digest(canonical_json(digests))

    def facts(self) -> dict[str, Any]:
        """Return what of the configuration shapes keys and values."""
        config = telling_facts(self._config)
        arguments = {name: plain(self._argument(name)) for name in ARGUMENTS}
        return {"config": config, "arguments": arguments}

    def compute_dtype(self) -> str:
        """Return the name of the dtype that the model computes in, as far as it is said."""
        named = self._config.get("dtype") or self._config.get("torch_dtype") or ""
        return f"{self._argument('dtype')} {named}".strip().replace("torch.", "")

    def _adapters(self) -> list[str]:
        """Return where adapters lie that are there from the start; those loaded later have random names."""
        listed = self._argument("lora_paths") or []
        adapters = listed.values() if isinstance(listed, Mapping) else listed
        return sorted(str(getattr(adapter, "lora_path", adapter)) for adapter in adapters)

    def _argument(self, name: str) -> Any:
        return getattr(self._arguments, name, None)


def _file_digest(file: Path) -> str:
    try:
        return blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError as error:
        raise ConfigError("weights", f"{file} cannot be read: {error.strerror}") from error
