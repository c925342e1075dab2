"""vLLM as a side of ``benchmarks/engines.py``: MODEL DTYPE; runs in vLLM's own environment."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from benchmarks.sides.protocol import Command, Prompts, serve


def load() -> Mapping[str, Command]:
    """Load the model and return what it can be asked."""
    # It prints as it is imported, and lives in an environment of its own.
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - as above
    from vllm.inputs import TokensPrompt  # noqa: PLC0415 - as above

    model, dtype = sys.argv[1:]
    llm = LLM(model, dtype=dtype, max_model_len=4096, enforce_eager=True, max_num_batched_tokens=4096)

    def answer_s(prompts: Prompts, max_tokens: int) -> float:
        sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        asked = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        began_s = time.perf_counter()
        llm.generate(asked, sampling, use_tqdm=False)
        return time.perf_counter() - began_s

    def hits_s(prompt: list[int]) -> dict[str, float]:
        answer_s([prompt], 1)
        return {"device": answer_s([prompt], 1)}

    return {"answer": answer_s, "hits": hits_s}


if __name__ == "__main__":
    serve(load)
