"""Adapters, drafted tokens and the modes other than serve, in vLLM itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.conftest import Run
from tests.engines.vllm.test_meaning import IN_MEMORY, WHOLE
from tests.engines.vllm.tiny_model import write_tiny_lora

pytestmark = pytest.mark.timeout(900)

OWN = {"reset": "own"}
COUNTS = {"counts": True}


def in_memory(tmp_path: Path, **settings: Any) -> dict[str, Any]:
    return IN_MEMORY | {"cache_path": str(tmp_path / "cache")} | settings


def first(answers: Any) -> dict[str, Any]:
    (answer,) = answers
    found: dict[str, Any] = answer
    return found


def test_a_prompt_is_kept_for_each_adapter_by_its_content(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    one, other = (str(write_tiny_lora(tmp_path / name, seed)) for name, seed in (("one", 1), ("other", 2)))
    ask = {"generate": [prompts[0]], "max_tokens": 8}
    by = [
        ask, ask | {"lora": {"name": "one", "id": 1, "path": one}},
        ask | {"lora": {"name": "other", "id": 2, "path": other}},
    ]  # fmt: skip
    renamed = ask | {"lora": {"name": "one by another name", "id": 3, "path": one}}
    options = {"block_size": 32, "enable_lora": True, "max_lora_rank": 8, "max_loras": 3}
    done = run_vllm([*by, OWN, *by, OWN, renamed], in_memory(tmp_path), **options)

    computed, loaded, again = done[:3], done[4:7], done[8]
    assert [first(answer)["cached"] for answer in computed] == [0, 0, 0]
    assert [first(answer)["cached"] for answer in [*loaded, again]] == [WHOLE] * 4
    assert [first(answer)["tokens"] for answer in loaded] == [first(answer)["tokens"] for answer in computed]
    assert first(again)["tokens"] == first(computed[1])["tokens"]
    assert len({tuple(first(answer)["tokens"]) for answer in computed}) == 3


def test_tokens_that_were_only_drafted_are_not_kept(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    """The answer fills blocks with tokens that were drafted first; the next turn finds the right ones."""
    prompt = prompts[1][:40] * 10
    drafting = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    options = {"block_size": 32, "speculative_config": drafting}
    ask = {"generate": [prompt], "max_tokens": 120}
    clean = first(run_vllm([ask], **options)[0])
    follow = {"generate": [prompt + clean["tokens"] + prompts[1][:20]], "max_tokens": 16}
    wanted = first(run_vllm([follow], **options)[0])
    stored, _, loaded = run_vllm([ask, OWN, follow], in_memory(tmp_path), **options)

    assert first(stored)["tokens"] == clean["tokens"]
    assert first(loaded)["cached"] == (400 + 120 - 1) // 32 * 32
    assert first(loaded)["tokens"] == wanted["tokens"]


def test_verify_computes_and_compares_what_it_finds(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    ask = {"generate": [prompts[0]], "max_tokens": 8}
    connector = in_memory(tmp_path, mode="verify", verify_share=1.0)
    computed, _, compared, counts = run_vllm([ask, OWN, ask, COUNTS], connector, block_size=32)

    assert compared == computed
    assert first(compared)["cached"] == 0
    assert (counts["blocks_compared"], counts["blocks_wrong"], counts["tokens_loaded"]) == (31, 0, 0)
    assert counts["faults"] == 0


def test_observe_stores_and_counts_and_loads_nothing(
    run_vllm: Run, prompts: list[list[int]], tmp_path: Path
) -> None:
    ask = {"generate": [prompts[0]], "max_tokens": 8}
    connector = in_memory(tmp_path, mode="observe")
    computed, _, again, counts = run_vllm([ask, OWN, ask, COUNTS], connector, block_size=32)

    assert again == computed
    assert (counts["blocks_stored"], counts["tokens_observed"], counts["tokens_loaded"]) == (31, WHOLE, 0)


def test_off_leaves_vllm_alone(run_vllm: Run, prompts: list[list[int]], tmp_path: Path) -> None:
    ask = {"generate": [prompts[0]], "max_tokens": 8}
    connector = in_memory(tmp_path, mode="off")
    computed, _, again, counts = run_vllm([ask, OWN, ask, COUNTS], connector, block_size=32)

    assert again == computed
    assert set(counts.values()) <= {0}
