"""Any script's prompts begin with what was kept, and its answers are the same as without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from backends.host import HostBackend
from engine_adapter.engine.request import Mode
from engine_adapter.transformers import PrefixCache
from kvstore.arena import Arena
from kvstore.errors import ConfigError, ModelRefusedError, RequestError
from kvstore.remote.server import SocketConfig, SocketServer
from kvstore.shared_memory import map_shared_slab
from kvstore.store import StoreConfig, TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=12)),
    "mistral with a window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=24)),
    "gemma2, every other layer with a window": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=12, sliding_window=32, query_pre_attn_scalar=12)
    ),
}


def make(family: str, seed: int = 0) -> PreTrainedModel:
    """Return a small random model; equal seeds give equal weights."""
    torch.manual_seed(seed)
    model: PreTrainedModel = FAMILIES[family]().train(mode=False)
    return model


@pytest.fixture(params=FAMILIES)
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """Return a model of each family."""
    return make(request.param)


@pytest.fixture
def llama() -> PreTrainedModel:
    """Return a model of the plainest family."""
    return make("llama")


def ids(num: int, seed: int = 1) -> torch.Tensor:
    """Return a prompt of ``num`` random tokens."""
    return torch.randint(3, 160, (1, num), generator=torch.Generator().manual_seed(seed))


def padded(*prompts: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return prompts as a tokenizer that pads on the left does."""
    columns = max(prompt.shape[1] for prompt in prompts)
    rows = [torch.cat([torch.zeros((1, columns - p.shape[1]), dtype=p.dtype), p], dim=1) for p in prompts]
    masks = [torch.arange(columns)[None] >= columns - p.shape[1] for p in prompts]
    return {"input_ids": torch.cat(rows), "attention_mask": torch.cat(masks).long()}


def answer(model: PreTrainedModel, inputs: dict[str, torch.Tensor], num: int = 40, **more: Any) -> Any:
    """Return what ``generate`` returns for a greedy answer of ``num`` tokens."""
    generate: Any = model.generate
    asked = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None, **more}
    return generate(**inputs, max_new_tokens=num, **asked)


def test_an_answer_is_the_same_with_a_prefix_reused(model: PreTrainedModel) -> None:
    inputs = padded(ids(70))
    clean = answer(model, inputs)
    prefixes = PrefixCache(model)
    for expected in (0, 64):
        cache = prefixes.cache(inputs)
        assert cache.num_reused == expected
        assert torch.equal(answer(model, inputs, cache=cache), clean)
    prefixes.close()


def test_what_was_generated_is_reused_in_the_next_turn(model: PreTrainedModel) -> None:
    prefixes = PrefixCache(model)
    first = answer(model, padded(ids(40)), cache=prefixes.cache(ids(40)))
    inputs = padded(torch.cat([first, ids(9, seed=2)], dim=1))
    clean = answer(model, inputs)
    cache = prefixes.cache(inputs)
    assert cache.num_reused == 64, "40 tokens and the first 24 or more of the answer, in whole blocks"
    assert torch.equal(answer(model, inputs, cache=cache), clean)
    prefixes.close()


def test_batches_that_are_padded_on_the_left_reuse_what_all_rows_have(model: PreTrainedModel) -> None:
    inputs = padded(ids(70), ids(50, seed=2), ids(33, seed=3))
    clean = answer(model, inputs)
    prefixes = PrefixCache(model)
    assert torch.equal(answer(model, inputs, cache=prefixes.cache(inputs)), clean)
    cache = prefixes.cache(inputs)
    assert cache.num_reused == 64, "the shortest of 64, 20 + 48 and 37 + 32 columns"
    assert torch.equal(answer(model, inputs, cache=cache), clean)
    alone = padded(ids(50, seed=2))
    assert prefixes.cache(alone).num_reused == 48, "a row's blocks do not depend on its padding"
    prefixes.close()


def test_a_row_that_nobody_knows_costs_the_others_their_prefix_and_nothing_else(
    llama: PreTrainedModel,
) -> None:
    prefixes = PrefixCache(llama)
    known = padded(ids(70))
    answer(llama, known, cache=prefixes.cache(known))
    inputs = padded(ids(70), ids(60, seed=9))
    cache = prefixes.cache(inputs)
    assert cache.num_reused == 10
    assert torch.equal(answer(llama, inputs, cache=cache), answer(llama, inputs))
    prefixes.close()


@pytest.mark.parametrize(
    "more", [{"num_beams": 3}, {"num_beams": 2, "num_return_sequences": 2}, {"do_sample": True, "top_k": 5}]
)
def test_beams_and_samples_are_the_same_too(llama: PreTrainedModel, more: dict[str, Any]) -> None:
    inputs = padded(ids(70), ids(52, seed=2))
    torch.manual_seed(5)
    clean = answer(llama, inputs, **more)
    prefixes = PrefixCache(llama)
    for is_reused in (False, True):
        torch.manual_seed(5)
        cache = prefixes.cache(inputs)
        assert (cache.num_reused > 0) is is_reused
        assert torch.equal(answer(llama, inputs, cache=cache, **more), clean)
    prefixes.close()


def test_what_beams_leave_behind_is_right(llama: PreTrainedModel) -> None:
    inputs = padded(ids(40))
    prefixes = PrefixCache(llama)
    beams = answer(llama, inputs, cache=prefixes.cache(inputs), num_beams=4)
    prefixes.mode = Mode.VERIFY
    again = padded(beams)
    answer(llama, again, num=4, cache=prefixes.cache(again))
    assert prefixes.statistics.num_compared > 2
    assert prefixes.statistics.num_wrong == 0
    prefixes.close()


def test_assisted_decoding_leaves_prefixes_and_cannot_begin_with_one(llama: PreTrainedModel) -> None:
    inputs = padded(ids(70))
    clean = answer(llama, inputs)
    prefixes = PrefixCache(llama)
    cache = prefixes.cache(inputs)
    assert torch.equal(answer(llama, inputs, cache=cache, prompt_lookup_num_tokens=4), clean)
    with pytest.raises(RequestError, match="assisted decoding"):
        answer(llama, inputs, cache=prefixes.cache(inputs), prompt_lookup_num_tokens=4)
    prefixes.mode = Mode.VERIFY
    whole = padded(clean)
    answer(llama, whole, num=2, cache=prefixes.cache(whole))
    assert prefixes.statistics.num_compared >= 4
    assert prefixes.statistics.num_wrong == 0, "tokens that were tried and dropped leave nothing behind"
    prefixes.close()


def test_plain_forward_calls_compute_the_rest(model: PreTrainedModel) -> None:
    inputs = padded(ids(70), ids(50, seed=2))
    prefixes = PrefixCache(model)
    first = prefixes.cache(inputs)
    whole = model(**first.rest(inputs["input_ids"]), cache=first).logits
    cache = prefixes.cache(inputs)
    assert cache.num_reused == 64
    rest = model(**cache.rest(inputs["input_ids"]), cache=cache).logits
    assert rest.shape[1] == 6
    torch.testing.assert_close(rest, whole[:, -6:], atol=1e-4, rtol=1e-4)
    prefixes.close()


def test_other_weights_share_nothing_and_equal_weights_do() -> None:
    inputs = padded(ids(70))
    one = PrefixCache(make("llama"))
    answer(one.model, inputs, cache=one.cache(inputs))
    same = PrefixCache(make("llama"), one.store)
    assert same.cache(inputs).num_reused == 64
    other = PrefixCache(make("llama", seed=1), one.store)
    assert other.cache(inputs).num_reused == 0
    salted = PrefixCache(make("llama"), one.store, salt="tenant")
    assert salted.cache(inputs).num_reused == 0
    one.close()


def test_modes(llama: PreTrainedModel) -> None:
    inputs = padded(ids(70))
    clean = answer(llama, inputs)
    prefixes = PrefixCache(llama, mode="off")
    answer(llama, inputs, cache=prefixes.cache(inputs))
    assert prefixes.statistics.num_stored == 0
    prefixes.mode = Mode.OBSERVE
    answer(llama, inputs, cache=prefixes.cache(inputs))
    assert prefixes.statistics.num_stored == 6
    cache = prefixes.cache(inputs)
    assert (cache.num_reused, prefixes.statistics.reused_tokens) == (0, 0)
    prefixes.mode = Mode.VERIFY
    assert torch.equal(answer(llama, inputs, cache=prefixes.cache(inputs)), clean)
    assert prefixes.statistics.num_compared == 4
    prefixes.close()


def test_verify_finds_a_wrong_block_and_keeps_it_out(llama: PreTrainedModel) -> None:
    inputs = padded(ids(70))
    prefixes = PrefixCache(llama)
    cache = prefixes.cache(inputs)
    answer(llama, inputs, cache=cache)
    key = cache._rows[0].keys[2]
    prefixes.store.evict([key])
    wrong = memoryview(bytearray(prefixes.shape.block_bytes))
    assert prefixes.store.put(prefixes._namespace, key, cache._rows[0].keys[1], wrong)
    prefixes.mode = Mode.VERIFY
    answer(llama, inputs, cache=prefixes.cache(inputs))
    assert (prefixes.statistics.num_compared, prefixes.statistics.num_wrong) == (4, 1)
    prefixes.mode = Mode.SERVE
    assert prefixes.cache(inputs).num_reused == 32, "what follows a wrong block is not trusted either"
    prefixes.close()


def test_a_server_keeps_prefixes_for_other_processes(llama: PreTrainedModel, tmp_path: Path) -> None:
    inputs = padded(ids(70))
    clean = answer(llama, inputs)
    arena = Arena(1 << 24, slab_bytes=1 << 18, map_slab=map_shared_slab)
    host = TierSpec(TierConfig("host", 1 << 23), HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)
    store = TieredStore([host], arena, StoreConfig(audit_share=1.0))
    server = SocketServer(store, arena, SocketConfig(tmp_path / "s", staging_bytes=1 << 20))
    address = f"unix://{tmp_path / 's'}"
    one = PrefixCache(llama, address)
    answer(llama, inputs, cache=one.cache(inputs))
    assert one.store.flush(5.0)
    one.close()
    other = PrefixCache(make("llama"), address)
    cache = other.cache(inputs)
    assert cache.num_reused == 64
    assert torch.equal(answer(other.model, inputs, cache=cache), clean)
    server.close()
    cache = other.cache(inputs)
    assert cache.num_reused == 0, "without its server a script goes on"
    assert torch.equal(answer(other.model, inputs, cache=cache), clean)
    other.close()
    store.close()


@pytest.fixture
def prefixes(llama: PreTrainedModel) -> Iterator[PrefixCache]:
    """Return a cache of prefixes."""
    prefixes = PrefixCache(llama)
    yield prefixes
    prefixes.close()


def test_a_cache_of_another_prompt_is_refused(prefixes: PrefixCache) -> None:
    cache = prefixes.cache(ids(40))
    with pytest.raises(RequestError, match="another prompt"):
        answer(prefixes.model, padded(ids(40, seed=2)), cache=cache)
    cache = prefixes.cache(padded(ids(40), ids(30)))
    with pytest.raises(RequestError, match="begun for 2 prompts"):
        answer(prefixes.model, padded(ids(40), ids(30), ids(20)), cache=cache)


@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([[1, 1, 1, 0]], "padded on the left"),
        ([[0, 1, 0, 1]], "padded on the left"),
        ([[1, 1, 1]], "shape"),
    ],
)
def test_prompts_with_gaps_are_refused(prefixes: PrefixCache, mask: list[list[int]], reason: str) -> None:
    inputs = {"input_ids": ids(4), "attention_mask": torch.tensor(mask)}
    with pytest.raises(RequestError, match=reason):
        prefixes.cache(inputs)


@pytest.mark.parametrize("prompts", [torch.zeros(0, dtype=torch.long), torch.zeros((1, 0), dtype=torch.long)])
def test_prompts_without_tokens_are_refused(prefixes: PrefixCache, prompts: torch.Tensor) -> None:
    with pytest.raises(RequestError, match="input_ids"):
        prefixes.cache(prompts)


def test_a_forward_call_that_computes_everything_again_is_refused(prefixes: PrefixCache) -> None:
    inputs = padded(ids(40))
    answer(prefixes.model, inputs, cache=prefixes.cache(inputs))
    with pytest.raises(RequestError, match="rest"):
        prefixes.model(**inputs, cache=prefixes.cache(inputs))


def test_padded_prompts_need_their_positions(prefixes: PrefixCache) -> None:
    inputs = padded(ids(40), ids(20))
    cache = prefixes.cache(inputs)
    with pytest.raises(RequestError, match="position_ids"):
        prefixes.model(**inputs, cache=cache)


def test_embeddings_are_refused(prefixes: PrefixCache) -> None:
    embeddings: Any = prefixes.model.get_input_embeddings()
    with pytest.raises(RequestError, match="embeddings"):
        prefixes.model(inputs_embeds=embeddings(ids(20)), cache=prefixes.cache(ids(20)))


def test_a_model_whose_prefixes_cannot_be_kept_is_refused(llama: PreTrainedModel) -> None:
    llama.config.is_encoder_decoder = True
    with pytest.raises(ModelRefusedError, match="encoder"):
        PrefixCache(llama)
    with pytest.raises(ModelRefusedError, match="GPT2"):
        PrefixCache(GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=32)))


def test_an_odd_address_is_refused(llama: PreTrainedModel) -> None:
    for address in ("", "unix:", "unix:///", "http:/x", "tcp://host:1"):
        with pytest.raises(ConfigError, match="store"):
            PrefixCache(llama, address)


def test_a_model_is_called_as_its_folder_or_as_on_the_hub(llama: PreTrainedModel, tmp_path: Path) -> None:
    folder = tmp_path / "SmolLM2-135M"
    llama.save_pretrained(folder)
    names = [str(folder), f"{folder}/", "org/SmolLM2-135M", ""]
    labels = []
    for name in names:
        llama.name_or_path = name
        with closing(PrefixCache(llama)) as prefixes:
            cache = prefixes.cache({"input_ids": ids(40)})
            llama(**cache.rest(ids(40)), cache=cache)
            labels += [space.label for space in prefixes.store.known_namespaces()]
    assert labels == ["SmolLM2-135M", "SmolLM2-135M", "org/SmolLM2-135M", "LlamaForCausalLM"]


def test_closing_leaves_the_model_as_it_was(llama: PreTrainedModel) -> None:
    hooks: Any = llama._forward_pre_hooks
    num_hooks = len(hooks)
    prefixes = PrefixCache(llama)
    assert len(hooks) == num_hooks + 1
    prefixes.close()
    assert len(hooks) == num_hooks
