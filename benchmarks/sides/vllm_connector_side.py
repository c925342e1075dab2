"""vLLM with or without our connector, as a side of ``benchmarks/vllm_connector.py``: MODEL SETTINGS.

SETTINGS is JSON for the connector, or ``none``. Runs in vLLM's environment, with ours on its path.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.sides.moody_line import MoodyLine, slow_disks
from benchmarks.sides.protocol import Command, serve
from engine_adapter.engine.costs import CostBook, KnownCosts
from engine_adapter.opening import builtin_registry
from kvstore.registry import Kind

_UNLIMITED = 1e15


class ConnectedVllm:
    """vLLM, its connector, and the line before the disk tier."""

    def __init__(self, model: str, settings: str) -> None:
        # It prints as it is imported, and lives in an environment of its own.
        from vllm import LLM, SamplingParams  # noqa: PLC0415 - as above
        from vllm.config import KVTransferConfig  # noqa: PLC0415 - as above

        self._line = MoodyLine()
        slow_disks(self._line)
        self._books: dict[str, CostBook] = {}
        self._sampling = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)
        transfer = None
        if settings != "none":
            transfer = KVTransferConfig(
                kv_connector="PrefixdConnector", kv_connector_module_path="engine_adapter.vllm",
                kv_role="kv_both", kv_connector_extra_config=json.loads(settings),
            )  # fmt: skip
        self._llm: Any = LLM(
            model, dtype="bfloat16", max_model_len=4096, enforce_eager=True, max_num_batched_tokens=4096,
            kv_transfer_config=transfer,
        )  # fmt: skip

    @property
    def _promiser(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler.connector.scheduler_side.promiser

    def ttft_s(self, prompt: list[int]) -> float:
        """Return the seconds to a prompt's first token."""
        self._line.begin()
        began_s = time.perf_counter()
        self._llm.generate([{"prompt_token_ids": prompt}], self._sampling, use_tqdm=False)
        return time.perf_counter() - began_s

    def forget(self) -> bool:
        """Empty vLLM's own cache."""
        return bool(self._llm.llm_engine.reset_prefix_cache())

    def flush(self) -> bool:
        """Wait until what was stored is on the disk."""
        return bool(self._promiser.store.flush(120.0))

    def block_bytes(self) -> int:
        """Return the bytes of a block."""
        return int(self._promiser.decider.sizes.block_bytes)

    def decide_by(self, policy: str) -> None:
        """Let another policy decide; each knows what steps took before, and has a book of its own since."""
        decider, sizes = self._promiser.decider, self._promiser.decider.sizes
        if policy not in self._books:
            steps = decider.costs.known().steps
            known = KnownCosts(steps)
            self._books[policy] = CostBook(sizes.block_bytes, "host", known, sizes.chunk_tokens)
        decider.policy = builtin_registry().get(Kind.RELOAD, policy)()
        decider.costs = self._books[policy]

    def set_line(
        self,
        bytes_per_s: float | None = None,
        slower_after_bytes: int | None = None,
        *,
        is_stalled: bool = False,
    ) -> None:
        """Change the line; what was learnt of it is forgotten."""
        self._books.clear()
        self._line.set(bytes_per_s or _UNLIMITED, slower_after_bytes, is_stalled=is_stalled)


def load() -> Mapping[str, Command]:
    """Load the model and return what it can be asked."""
    side = ConnectedVllm(*sys.argv[1:])
    return {
        "ttft_s": side.ttft_s, "forget": side.forget, "flush": side.flush, "block_bytes": side.block_bytes,
        "decide_by": side.decide_by, "set_line": side.set_line,
    }  # fmt: skip


if __name__ == "__main__":
    serve(load)
