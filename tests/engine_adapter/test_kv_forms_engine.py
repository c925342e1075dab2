"""The engine with keys and values in 8 bits: what is loaded is what was computed, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast

from engine_adapter.engine.kv_forms import LARGEST_CODE, SCALE_DTYPE
from engine_adapter.engine.models import LoadedModel, load_model
from engine_adapter.engine.request import CacheUse, Mode
from engine_adapter.engine.sample_text import CODE, PROSE
from kvstore.errors import ModelRefusedError
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    HEAD_DIM,
    NUM_KV_HEADS,
    NUM_LAYERS,
    CleanIds,
    MakeRig,
    Rig,
    greedy,
    prompt_of,
)

FORMS = ["int8", "fp8"]
SHAPES = {"chunks that divide blocks": 8, "chunks that do not": 5, "chunks across blocks": 20, "whole": 512}
# Values of all layers, after keys and values themselves.
SCALE_BYTES = NUM_LAYERS * BLOCK_TOKENS * NUM_KV_HEADS * 2


@pytest.fixture(scope="module", params=FORMS)
def model(request: pytest.FixtureRequest, tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, block_tokens=BLOCK_TOKENS, kv_dtype=request.param)


def stored(rig: Rig, prompt: Sequence[int], index: int) -> bytes:
    """Return a block as a tier has it."""
    data = bytearray(rig.model.kv_shape.block_bytes)
    assert rig.store.get_into(rig.keys(prompt)[index], memoryview(data))
    return bytes(data)


def on_device(rig: Rig, prompt: Sequence[int], index: int) -> bytes:
    """Return a block as the pool has it."""
    data = bytearray(rig.model.kv_shape.block_bytes)

    def read() -> None:
        block = rig.pool.acquire(rig.keys(prompt)[index])
        assert block is not None
        rig.pool.read_block(block, memoryview(data))
        rig.pool.release([block])

    rig.on_engine_thread(read)
    return bytes(data)


@pytest.mark.parametrize("chunk", SHAPES.values(), ids=SHAPES)
def test_the_cache_makes_no_difference(make_rig: MakeRig, model: LoadedModel, chunk: int) -> None:
    rig = make_rig(model=model, max_batched_tokens=chunk, max_sequences=4)
    prompt = prompt_of(75, 1)
    clean = rig.engine.generate(greedy(prompt, cache=CacheUse.OFF))

    for source in ("computed", "device", "host"):
        answer = rig.engine.generate(greedy(prompt))
        assert answer.token_ids == clean.token_ids
        assert answer.usage.tokens_by_source.get(source, 0) >= 72
        if source == "device":
            rig.engine.flush(10)
            rig.forget_device()


def test_a_batch_gives_each_prompt_its_own_answer(make_rig: MakeRig, model: LoadedModel) -> None:
    rig = make_rig(model=model, max_batched_tokens=24, max_sequences=4)
    prompts = [prompt_of(length, seed) for seed, length in enumerate([7, 16, 50, 64, 100])]
    prompts += [prompts[4][:64], prompts[4][:64]]
    requests = [greedy(prompt, 8, cache=CacheUse.OFF) for prompt in prompts]
    clean = [rig.engine.generate(request).token_ids for request in requests]

    for _ in range(2):
        answers = rig.generate_together([greedy(prompt, 8) for prompt in prompts])
        assert [answer.token_ids for answer in answers] == clean
        rig.engine.flush(10)
        rig.forget_device()


def test_a_block_comes_back_bit_for_bit(make_rig: MakeRig, model: LoadedModel) -> None:
    rig, prompt = make_rig(model=model), prompt_of(75, 1)
    rig.engine.generate(greedy(prompt, 1))
    computed = [on_device(rig, prompt, index) for index in range(9)]
    rig.engine.flush(10)
    assert [stored(rig, prompt, index) for index in range(9)] == computed
    assert len(set(computed)) == 9
    rig.forget_device()

    answer = rig.engine.generate(greedy(prompt, 1))

    assert answer.usage.tokens_by_source == {"computed": 3, "host": 72}
    assert [on_device(rig, prompt, index) for index in range(9)] == computed


def test_of_a_whole_resident_prompt_the_last_block_is_copied_with_its_scales(
    make_rig: MakeRig, model: LoadedModel
) -> None:
    rig, prompt = make_rig(model=model), prompt_of(48, 1)
    first = rig.engine.generate(greedy(prompt))
    again = rig.engine.generate(greedy(prompt))

    assert again.token_ids == first.token_ids
    assert again.usage.tokens_by_source == {"computed": 1, "device": 47}


def test_answers_are_near_those_of_full_precision(
    make_rig: MakeRig, model: LoadedModel, clean_ids: CleanIds
) -> None:
    rig = make_rig(model=model)
    prompts = [prompt_of(60, seed) for seed in range(8)]
    ours = [rig.engine.generate(greedy(prompt, 1)).token_ids for prompt in prompts]
    num_equal = sum(mine == clean_ids(prompt, 1) for mine, prompt in zip(ours, prompts, strict=True))
    assert num_equal >= 5


def test_verify_passes_what_is_equal_and_finds_what_is_not(make_rig: MakeRig, model: LoadedModel) -> None:
    rig = make_rig(model=model, mode=Mode.VERIFY, verify_share=1.0, max_batched_tokens=20, max_sequences=4)
    prompt, other = prompt_of(75, 1), prompt_of(75, 2)
    # In company, so that its chunks were cut otherwise than they will be.
    rig.generate_together([greedy(prompt_of(30, 3), 4), greedy(prompt, 1), greedy(other, 1)])
    rig.engine.flush(10)
    rig.forget_device()
    rig.engine.generate(greedy(prompt))
    statistics = rig.engine.statistics()
    assert (statistics.num_verified, statistics.num_found_wrong) == (9, 0)
    rig.forget_device()

    wrong = {
        4: stored(rig, other, 4),
        6: stored(rig, prompt, 6)[:-SCALE_BYTES] + bytes(SCALE_BYTES),
        8: b"\xff" * model.kv_shape.block_bytes,
    }
    keys = rig.keys(prompt)
    for index, data in wrong.items():
        rig.store.evict([keys[index]])
        rig.store.put(rig.model.namespace, keys[index], keys[index - 1], memoryview(data))
    rig.engine.flush(10)
    rig.engine.generate(greedy(prompt))

    assert rig.engine.statistics().num_found_wrong == len(wrong)


def test_forms_have_namespaces_of_their_own(tiny_folder: Path) -> None:
    models = {form: load_model(tiny_folder, kv_dtype=form) for form in ("float32", "bfloat16", *FORMS)}
    assert len({model.namespace.digest for model in models.values()}) == len(models)
    again = load_model(tiny_folder, kv_dtype="int8")
    assert again.namespace == models["int8"].namespace
    assert models["int8"].namespace.kv_dtype == "int8"
    assert models["fp8"].namespace.kv_form.startswith("scaled-1;keys by channel ")


def test_a_block_holds_bytes_and_scales(model: LoadedModel, tiny_model: LoadedModel) -> None:
    shape = model.kv_shape
    assert shape.scale_dtype == SCALE_DTYPE
    assert shape.block_bytes == tiny_model.kv_shape.block_bytes // 4 + SCALE_BYTES


def test_the_range_of_keys_is_the_models_own(model: LoadedModel, make_rig: MakeRig) -> None:
    """Hardly any key of other prompts, at other positions, is beyond it; and it is not far too wide."""
    rig, num_tokens = make_rig(num_blocks=256, model=model), 1500
    rig.engine.generate(greedy(prompt_of(num_tokens, 1), 1))
    num_keys = num_tokens * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM
    assert rig.engine.statistics().num_clamped < num_keys / 1000
    largest = rig.pool.keys_and_values[:, 0].float().abs().amax(1) / LARGEST_CODE[model.kv_shape.dtype]
    assert float(largest.min()) > 0.1


def test_a_model_without_finite_keys_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    broken: Any = LlamaForCausalLM.from_pretrained(tiny_folder)
    torch.nn.init.constant_(broken.model.layers[1].self_attn.k_proj.weight, torch.nan)
    broken.save_pretrained(tmp_path)
    load_model(tmp_path)
    with pytest.raises(ModelRefusedError, match="computes keys that are not finite"):
        load_model(tmp_path, kv_dtype="int8")


def test_the_range_allows_for_what_rope_turns_up_late(
    make_rig: MakeRig, tiny_folder: Path, tmp_path: Path
) -> None:
    """Half of the channels begin at nothing, and slow ones among them are large at the end alone."""
    turned: Any = LlamaForCausalLM.from_pretrained(tiny_folder)
    for layer in turned.model.layers:
        rows = layer.self_attn.k_proj.weight.data.view(NUM_KV_HEADS, HEAD_DIM, -1)
        rows[:, HEAD_DIM // 2 :] = 0
    turned.save_pretrained(tmp_path)
    rig = make_rig(num_blocks=256, model=load_model(tmp_path, block_tokens=BLOCK_TOKENS, kv_dtype="int8"))
    num_tokens = 2000
    rig.engine.generate(greedy(prompt_of(num_tokens, 1), 1))
    num_keys = num_tokens * NUM_LAYERS * NUM_KV_HEADS * HEAD_DIM
    assert rig.engine.statistics().num_clamped < num_keys / 5000


def test_a_model_with_a_tokenizer_reads_a_text_and_another_one_a_sample_that_is_made_up(
    tiny_folder: Path, tiny_tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    folder = tmp_path / "with"
    shutil.copytree(tiny_folder, folder, ignore=shutil.ignore_patterns("*token*"))
    made_up = load_model(folder, kv_dtype="int8")
    tiny_tokenizer.save_pretrained(folder)
    model = load_model(folder, kv_dtype="int8")
    assert model.namespace.kv_form != made_up.namespace.kv_form
    assert model.namespace == load_model(folder, kv_dtype="int8").namespace

    ids = [*tiny_tokenizer.encode(PROSE)[:256], *tiny_tokenizer.encode(CODE)[:256]]
    with torch.inference_mode():
        cached: Any = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids]), use_cache=True)
    assert model.key_scales is not None
    for layer, scales in zip(cached.past_key_values.layers, model.key_scales, strict=True):
        room = scales * LARGEST_CODE[torch.int8] / layer.keys[0].abs().amax(1)
        assert float(room.min()) > 1.349, "at other places of the context keys may be larger still"
        assert float(room.median()) < 1.35 * 2**0.25 * 1.2
