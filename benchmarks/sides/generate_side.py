"""transformers' own ``generate`` as a side of ``benchmarks/engines.py``: MODEL DTYPE."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from benchmarks.sides.protocol import Command, Prompts, serve


def load() -> Mapping[str, Command]:
    """Load the model and return what it can be asked."""
    folder, dtype = sys.argv[1:]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model.eval()
    model.generation_config.eos_token_id = None

    def answer_s(prompts: Prompts, max_tokens: int) -> float:
        ids = torch.tensor(prompts)
        began_s = time.perf_counter()
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
        )  # fmt: skip
        return time.perf_counter() - began_s

    return {"answer": answer_s}


if __name__ == "__main__":
    serve(load)
