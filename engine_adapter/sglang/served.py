"""What SGLang's process says of the model it serves."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine_adapter.foreign_config import plain, telling_facts
from engine_adapter.foreign_weights import DIGESTS, adapter_digest, model_digest, named_digest
from engine_adapter.sglang.settings import AdapterSettings
from kvstore.errors import ConfigError
from kvstore.namespace import canonical_json

# What of the server's arguments shapes keys and values, or their place in them.
_ARGUMENTS = (
    "dtype", "quantization", "kv_cache_dtype", "json_model_override_args", "speculative_algorithm",
    "disable_hybrid_swa_memory", "attention_backend", "prefill_attention_backend", "context_length",
)  # fmt: skip


class Served:
    """The model of this process, as its server's arguments and its configuration have it.

    ``config`` is the model's configuration, ``arguments`` are SGLang's ``ServerArgs``.
    """

    def __init__(self, arguments: Any, config: Mapping[str, Any], engine_version: str) -> None:
        self.version = engine_version
        self._arguments = arguments
        self._config = config

    @classmethod
    def here(cls) -> Served:
        """Return that of this process. Raises ``ConfigError`` where SGLang has published none."""
        from sglang.srt.runtime_context import (  # noqa: PLC0415 - needs SGLang
            get_server_args,
            process_model_config,
        )

        try:
            return cls(get_server_args(), process_model_config().hf_config.to_dict(), version("sglang"))
        except (ValueError, AttributeError, OSError) as error:
            raise ConfigError("model", f"SGLang does not say which one it serves here: {error}") from error

    def weights(self, settings: AdapterSettings) -> str:
        """Return the digest of all weights that shape keys and values: the model's, a draft's, adapters'.

        Reads their files unless it is remembered. Raises ``ConfigError`` where it cannot be told.
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
        return digests[0] if len(digests) == 1 else named_digest(canonical_json(digests))

    def facts(self) -> dict[str, Any]:
        """Return what of the configuration shapes keys and values."""
        config = telling_facts(self._config)
        arguments = {name: plain(self._argument(name)) for name in _ARGUMENTS}
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
