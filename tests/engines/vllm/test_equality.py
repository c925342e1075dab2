"""vLLM says the same with and without the connector: while it stores, and when it loads in a new process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engines.vllm.conftest import Run

pytestmark = pytest.mark.timeout(900)

LOAD = {"reload_policy": "always-load"}


def twice(prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Ask for each prompt's first token, and then for more: those begin with vLLM's own prefix hit."""
    return [
        {"generate": [prompt], "max_tokens": num} for prompt in prompts for num in (1, 16)
    ]  # fmt: skip


def said(answers: list[Any]) -> list[tuple[list[int], list[float]]]:
    """Return tokens and log-probabilities of all answers that begin with the same prefix hit in every run."""
    return [(answer["tokens"], answer["logprobs"]) for (answer,) in answers[1::2]]


def first_tokens(answers: list[Any]) -> list[list[int]]:
    return [answer["tokens"] for (answer,) in answers[::2]]


@pytest.mark.parametrize(("block_size", "chunk"), [(32, 2048), (32, 256), (128, 256)])
def test_storing_and_loading_change_no_answer(
    run_vllm: Run, prompts: list[list[int]], own_store: dict[str, Any], block_size: int, chunk: int
) -> None:
    options = {"block_size": block_size, "max_num_batched_tokens": chunk}
    clean = run_vllm(twice(prompts), **options)
    stored = run_vllm(twice(prompts), own_store, **options)
    loaded = run_vllm(twice(prompts), own_store | LOAD, **options)

    assert stored == clean
    assert said(loaded) == said(clean)
    assert first_tokens(loaded) == first_tokens(clean)
    whole = [(len(prompt) - 1) // block_size * block_size for prompt in prompts]
    assert [answer["cached"] for (answer,) in loaded[::2]] == whole


def flip_bytes(folder: Path) -> None:
    """Flip a byte in every fifth block."""
    files = sorted(folder.rglob("*"), key=lambda path: path.name)
    for path in [path for path in files if path.is_file() and path.stat().st_size > 10_000][::5]:
        with path.open("r+b") as file:
            file.seek(5000)
            byte = file.read(1)[0]
            file.seek(5000)
            file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("loading", ["sync", "async"])
def test_a_block_gone_bad_is_computed_instead(
    run_vllm: Run, prompts: list[list[int]], own_store: dict[str, Any], loading: str
) -> None:
    clean = run_vllm(twice(prompts), block_size=32)
    run_vllm(twice(prompts), own_store, block_size=32)
    flip_bytes(Path(own_store["disk_path"]))
    loaded = run_vllm(twice(prompts), own_store | LOAD | {"loading": loading}, block_size=32)

    assert first_tokens(loaded) == first_tokens(clean)
    assert [tokens for tokens, _ in said(loaded)] == [tokens for tokens, _ in said(clean)]


@pytest.mark.parametrize("loading", ["sync", "async"])
def test_a_request_abandoned_after_its_load_has_failed_spoils_no_other(
    run_vllm: Run, prompts: list[list[int]], own_store: dict[str, Any], loading: str
) -> None:
    """vLLM shares blocks before they are loaded, and leaves it to the first request to compute them again."""
    ask = {"generate": [prompts[0]], "max_tokens": 8}
    ((clean,),) = run_vllm([ask], own_store, block_size=32)
    flip_bytes(Path(own_store["disk_path"]))
    abandon = {"abandon": prompts[0], "beside": prompts[0]}
    beside, (later,) = run_vllm([abandon, ask], own_store | LOAD | {"loading": loading}, block_size=32)

    assert beside == later["tokens"] == clean["tokens"]
