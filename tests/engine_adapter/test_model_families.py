"""Each family of models through the whole engine, far beyond its window, against transformers alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from engine_adapter.engine.models import LoadedModel, load_model
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    CONTEXT_TOKENS,
    EOS,
    HEAD_DIM,
    NUM_KV_HEADS,
    NUM_LAYERS,
    VOCAB_SIZE,
    MakeRig,
    clean_run,
    greedy,
    prompt_of,
)

WINDOW = 20
CAP = 5.0
LOCAL, GLOBAL = "sliding_attention", "full_attention"
FAMILIES: dict[str, dict[str, Any]] = {
    "gemma": {},
    "gemma2": {
        "sliding_window": WINDOW, "attn_logit_softcapping": CAP, "query_pre_attn_scalar": 20,
    },
    "gemma3_text": {
        "sliding_window": WINDOW, "query_pre_attn_scalar": 20, "layer_types": [LOCAL, GLOBAL, LOCAL],
        "rope_parameters": {
            LOCAL: {"rope_type": "default", "rope_theta": 100.0},
            GLOBAL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 10_000.0},
        },
    },
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "phi3": {"sliding_window": WINDOW},
    "qwen2": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3": {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
}  # fmt: skip
WINDOWED = [family for family, fields in FAMILIES.items() if "sliding_window" in fields]
LENGTHS = (6 * WINDOW - 5, 5 * WINDOW, 2 * WINDOW + 1, 7)
PROMPTS = [prompt_of(length, length) for length in LENGTHS]
NUM_TOKENS = 2 * WINDOW + 1
# Once a prompt is there, decoding goes on the same way whatever brought it: a few tokens show its state.
NUM_FIRST_TOKENS = BLOCK_TOKENS


@dataclass(frozen=True)
class Family:
    """A tiny random model on the disk, loaded for serving, and what transformers makes of the prompts."""

    folder: Path
    loaded: LoadedModel
    clean_answers: list[tuple[int, ...]]


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def family(name: str) -> Family:
        folder = tmp_path_factory.mktemp(name)
        torch.manual_seed(0)
        config = AutoConfig.for_model(
            name, vocab_size=VOCAB_SIZE, hidden_size=4 * HEAD_DIM, intermediate_size=96,
            num_hidden_layers=NUM_LAYERS, num_attention_heads=4, num_key_value_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM, max_position_embeddings=CONTEXT_TOKENS, initializer_range=0.4,
            tie_word_embeddings=False, pad_token_id=EOS, bos_token_id=EOS - 1, eos_token_id=EOS,
            **FAMILIES[name],
        )  # fmt: skip
        auto: Any = AutoModelForCausalLM
        auto.from_config(config).save_pretrained(folder)
        clean_ids = clean_run(folder, attn_implementation="eager")
        answers = [clean_ids(prompt, NUM_TOKENS) for prompt in PROMPTS]
        return Family(folder, load_model(folder, block_tokens=BLOCK_TOKENS), answers)

    return family


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(
    ("chunk", "num_computed_tokens"),
    [(7, NUM_FIRST_TOKENS), (16, NUM_FIRST_TOKENS), (WINDOW, NUM_FIRST_TOKENS), (512, NUM_TOKENS)],
)
def test_computed_and_reloaded_prompts_continue_as_in_transformers(
    make_rig: MakeRig, families: Any, name: str, chunk: int, num_computed_tokens: int
) -> None:
    family = families(name)
    rig = make_rig(num_blocks=128, model=family.loaded, max_batched_tokens=chunk, max_sequences=4)
    for source, num_tokens in (("computed", num_computed_tokens), ("host", NUM_FIRST_TOKENS)):
        answers = rig.generate_together([greedy(prompt, num_tokens) for prompt in PROMPTS])
        assert [answer.token_ids for answer in answers] == [ids[:num_tokens] for ids in family.clean_answers]
        assert answers[0].usage.tokens_by_source.get(source, 0) >= 14 * BLOCK_TOKENS
        assert rig.engine.flush(10)
        rig.forget_device()


def changes() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in WINDOWED:
        yield name, {"sliding_window": WINDOW - 1}
        yield name, {"sliding_window": WINDOW + 1}
    yield "gemma2", {"attn_logit_softcapping": 50.0}
    yield "gemma2", {"query_pre_attn_scalar": HEAD_DIM}


@pytest.mark.parametrize(("name", "changed"), [*changes()])
def test_these_models_would_answer_otherwise_with_a_window_of_one_key_more_or_less_or_another_cap(
    families: Any, name: str, changed: dict[str, Any]
) -> None:
    family = families(name)
    changed_ids = clean_run(family.folder, attn_implementation="eager", **changed)
    assert changed_ids(PROMPTS[0], NUM_TOKENS) != family.clean_answers[0]
