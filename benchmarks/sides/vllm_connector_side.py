"""vLLM with or without our connector, as a side of ``benchmarks/vllm_connector.py``: MODEL SETTINGS.

SETTINGS is JSON for the connector, or ``none``. Runs in vLLM's environment, with ours on its path.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.sides.protocol import Command, serve

_UNLIMITED = 1e15


def load() -> Mapping[str, Command]:
    """Load the model and return what it can be asked."""
    # It prints as it is imported, and lives in an environment of its own.
    from vllm import LLM, SamplingParams  # noqa: PLC0415
    from vllm.config import KVTransferConfig  # noqa: PLC0415
    from vllm.inputs import TokensPrompt  # noqa: PLC0415

    from benchmarks.sides.moody_line import MoodyLine, slow_disks  # noqa: PLC0415
    from engine_adapter.engine.costs import CostBook, KnownCosts  # noqa: PLC0415
    from engine_adapter.opening import builtin_registry  # noqa: PLC0415
    from kvstore.registry import Kind  # noqa: PLC0415

    model, settings = sys.argv[1:]
    line = MoodyLine()
    slow_disks(line)
    transfer = None
    if settings != "none":
        transfer = KVTransferConfig(
            kv_connector="PrefixdConnector", kv_connector_module_path="engine_adapter.vllm",
            kv_role="kv_both", kv_connector_extra_config=json.loads(settings),
        )  # fmt: skip
    llm = LLM(
        model, dtype="bfloat16", max_model_len=4096, enforce_eager=True, max_num_batched_tokens=4096,
        kv_transfer_config=transfer,
    )  # fmt: skip

    def promiser() -> Any:
        return llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler_side.promiser

    def ttft_s(prompt: list[int]) -> float:
        line.begin()
        began_s = time.perf_counter()
        llm.generate(
            [TokensPrompt(prompt_token_ids=prompt)],
            SamplingParams(temperature=0, max_tokens=1, ignore_eos=True),
            use_tqdm=False,
        )
        return time.perf_counter() - began_s

    def forget() -> bool:
        return bool(llm.llm_engine.reset_prefix_cache())

    def flush() -> bool:
        return bool(promiser().store.flush(120.0))

    def decide_by(policy: str) -> None:
        """Let another policy decide, which knows what steps take and nothing of the line."""
        decider, sizes = promiser().decider, promiser().decider.sizes
        steps = decider.costs.known().steps
        decider.policy = builtin_registry().get(Kind.RELOAD, policy)()
        decider.costs = CostBook(sizes.block_bytes, "host", KnownCosts(steps), sizes.chunk_tokens)

    def set_line(
        bytes_per_s: float | None = None, slower_after_bytes: int | None = None, *, is_stalled: bool = False
    ) -> None:
        line.set(bytes_per_s or _UNLIMITED, slower_after_bytes, is_stalled=is_stalled)

    return {
        "ttft_s": ttft_s, "forget": forget, "flush": flush, "decide_by": decide_by, "set_line": set_line,
        "block_bytes": lambda: promiser().decider.sizes.block_bytes,
    }  # fmt: skip


if __name__ == "__main__":
    serve(load)
