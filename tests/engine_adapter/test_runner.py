"""The model runner against transformers' own attention and cache."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from backends.device import DevicePool
from backends.kv_shape import KVShape, Layout
from engine_adapter.engine.attention import ATTENTION_NAME, register_attention
from engine_adapter.engine.models import load_model
from engine_adapter.engine.probe import attention_kinds
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.engine.sdpa import SdpaAttention
from engine_adapter.engine.support import SUPPORTED_ARCHITECTURES, refusal
from kvstore.clock import Clock
from kvstore.errors import InvariantError
from policies.lru import LeafFirstLRU

LAYOUTS: list[Layout] = ["layer-first", "block-first"]
FAMILIES = ["llama", "qwen2", "qwen3"]
WINDOWED = [
    "afmoe", "cohere2", "cohere2_moe", "cwm", "exaone4", "exaone_moe", "gemma2", "gemma3_text", "kolibri1",
    "ministral", "ministral3", "mistral", "mixtral", "olmo3", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "smollm3", "starcoder2", "vaultgemma",
]  # fmt: skip
WINDOW = 9
CONTEXT = 512
BLOCK_TOKENS = 4
PROMPT = [(7 * i * i + 3 * i + 5) % 120 + 4 for i in range(41)]
OTHER_PROMPT = [(5 * i * i + 11 * i + 9) % 120 + 4 for i in range(41)]
# fp32 logits here have a standard deviation of about 1.
ROUNDING = 2e-5

_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "use_sliding_window": True,
    "max_window_layers": 1,
    "no_rope_layer_interval": 2,
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "decoder_sparse_step": 1,
}

_OTHER_SIZES = {name: {"num_key_value_heads": 4} for name in ("gpt_neox", "persimmon")}


@cache
def tiny_model(family: str, dtype: torch.dtype = torch.float32, window: int = CONTEXT) -> PreTrainedModel:
    """A random model of two layers whose output depends on all of its input."""
    register_attention()
    torch.manual_seed(0)
    sizes = _SIZES | _OTHER_SIZES.get(family, {}) | {"sliding_window": window}
    config = AutoConfig.for_model(family, **sizes)
    auto: Any = AutoModelForCausalLM
    model: Any = auto.from_config(config, attn_implementation=ATTENTION_NAME)
    for parameter in model.parameters():
        parameter.data.normal_(0.0 if parameter.dim() > 1 else 1.0, 0.15)
    return cast("PreTrainedModel", model.to(dtype).eval())


@cache
def plain_logits(
    family: str, tokens: tuple[int, ...], dtype: torch.dtype = torch.float32, window: int = CONTEXT
) -> torch.Tensor:
    """Logits after each token, by transformers alone."""
    model = tiny_model(family, dtype, window)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        logits: torch.Tensor = model(input_ids=torch.tensor([tokens])).logits[0].float()
    model.set_attn_implementation(ATTENTION_NAME)
    return logits


def new_pool(shape: KVShape, num_blocks: int, layout: Layout = "layer-first") -> DevicePool:
    policy = LeafFirstLRU()
    return DevicePool(shape, num_blocks, "cpu", policy, lambda *_: None, lambda *_: None, Clock(), layout)


class Bench:
    """A model over a pool, and prefixes computed into it."""

    def __init__(
        self,
        model: PreTrainedModel,
        num_blocks: int = 64,
        gather_tokens: int = 512,
        layout: Layout = "layer-first",
    ) -> None:
        config: Any = model.config
        heads, dim = config.num_key_value_heads, getattr(config, "head_dim", None) or 16
        shape = KVShape(config.num_hidden_layers, heads, dim, BLOCK_TOKENS, model.dtype)
        self.pool = new_pool(shape, num_blocks, layout)
        self.runner = ModelRunner(model, self.pool, SdpaAttention(gather_tokens))

    def blocks(self, num: int = 12) -> list[int]:
        blocks = self.pool.allocate(num)
        assert blocks is not None
        return blocks

    def prefill(
        self, tokens: Sequence[int], blocks: Sequence[int], chunk: int = 512, start: int = 0
    ) -> torch.Tensor:
        """Compute ``tokens[start:]`` in chunks and return the logits of the last one."""
        logits = torch.empty(0)
        for begin in range(start, len(tokens), chunk):
            logits = self.runner.forward([Chunk(tokens[begin : begin + chunk], begin, blocks, 1)])
        return logits[0]

    def generate(self, tokens: Sequence[int], num: int, chunk: int = 512) -> list[int]:
        blocks, ids = self.blocks(-(-(len(tokens) + num) // BLOCK_TOKENS)), list(tokens)
        ids.append(int(self.prefill(ids, blocks, chunk).argmax()))
        while len(ids) < len(tokens) + num:
            ids.append(int(self.prefill(ids, blocks, start=len(ids) - 1).argmax()))
        self.pool.release(blocks)
        return ids[len(tokens) :]


@pytest.mark.parametrize("family", sorted(SUPPORTED_ARCHITECTURES))
def test_each_supported_family_gives_the_logits_of_transformers(family: str) -> None:
    model = tiny_model(family)
    assert refusal(model.config.to_dict()) is None
    bench, expected = Bench(model), plain_logits(family, tuple(PROMPT))
    blocks = bench.blocks()
    for end, start in ((13, 0), (40, 13), (41, 40)):
        logits = bench.prefill(PROMPT[:end], blocks, start=start)
        torch.testing.assert_close(logits, expected[end - 1], atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize(
    ("family", "layout"),
    [*((family, "layer-first") for family in WINDOWED), ("gemma2", "block-first"), ("olmo3", "block-first")],
)
def test_each_windowed_family_gives_the_logits_of_transformers(family: str, layout: Layout) -> None:
    model = tiny_model(family, window=WINDOW)
    bench, expected = Bench(model, layout=layout), plain_logits(family, tuple(PROMPT), window=WINDOW)
    assert WINDOW in {kind.window for kind in attention_kinds(family, model, bench.pool.shape)}
    blocks = bench.blocks()
    for end, start in ((13, 0), (40, 13), (41, 40)):
        logits = bench.prefill(PROMPT[:end], blocks, start=start)
        torch.testing.assert_close(logits, expected[end - 1], atol=ROUNDING, rtol=ROUNDING)
    beside = plain_logits(family, tuple(PROMPT), window=WINDOW + 1)
    assert (expected - beside)[-1].abs().max() > 100 * ROUNDING


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 16, 40, 41])
def test_any_chunk_size_gives_the_same_logits(family: str, chunk: int) -> None:
    bench = Bench(tiny_model(family))
    logits = bench.prefill(PROMPT, bench.blocks(), chunk)
    torch.testing.assert_close(logits, plain_logits(family, tuple(PROMPT))[-1], atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [5, 512])
def test_greedy_ids_equal_those_of_plain_generate(family: str, chunk: int) -> None:
    model = tiny_model(family)
    generated = Bench(model).generate(PROMPT, 20, chunk)
    model.set_attn_implementation("sdpa")
    whole: Any = model.generate(  # type: ignore[operator]
        torch.tensor([PROMPT]), attention_mask=torch.ones(1, len(PROMPT)), max_new_tokens=20, do_sample=False,
        eos_token_id=None,
    )  # fmt: skip
    model.set_attn_implementation(ATTENTION_NAME)
    assert generated == whole[0, len(PROMPT) :].tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gather_tokens", [0, 12, 512])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sequences_of_one_batch_do_not_see_each_other(
    family: str, gather_tokens: int, layout: Layout
) -> None:
    bench = Bench(tiny_model(family), gather_tokens=gather_tokens, layout=layout)
    prompts = [PROMPT[:9], OTHER_PROMPT[:30], PROMPT[5:17], OTHER_PROMPT[3:5], PROMPT[2:]]
    starts = [8, 29, 4, 0, 38]
    tables = [bench.blocks() for _ in prompts]
    for prompt, table, start in zip(prompts, tables, starts, strict=True):
        if start:
            bench.prefill(prompt[:start], table)
    chunks = [
        Chunk(prompt[start:], start, table, num_logits=1)
        for prompt, table, start in zip(prompts, tables, starts, strict=True)
    ]
    expected = torch.stack([plain_logits(family, tuple(prompt))[-1] for prompt in prompts])
    torch.testing.assert_close(bench.runner.forward(chunks), expected, atol=ROUNDING, rtol=ROUNDING)


def test_logits_come_for_as_many_of_the_last_tokens_as_are_wanted_in_order() -> None:
    bench = Bench(tiny_model("llama"))
    tables = [bench.blocks() for _ in range(3)]
    wanted = [0, 1, 3]
    prompts = [PROMPT[:7], PROMPT[:12], OTHER_PROMPT[:5]]
    chunks = [Chunk(p, 0, table, w) for p, table, w in zip(prompts, tables, wanted, strict=True)]
    expected = [plain_logits("llama", tuple(p))[-num:] for p, num in zip(prompts, wanted, strict=True) if num]
    logits = bench.runner.forward(chunks)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, torch.cat(expected), atol=ROUNDING, rtol=ROUNDING)
    assert bench.runner.forward([Chunk(PROMPT[:3], 0, tables[0], 0)]).shape == (0, 128)


@pytest.mark.parametrize("gather_tokens", [0, 512])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_may_lie_anywhere(gather_tokens: int, layout: Layout) -> None:
    bench = Bench(tiny_model("llama"), gather_tokens=gather_tokens, layout=layout)
    scattered, reverse = bench.blocks(24)[::2], bench.blocks()[::-1]
    expected = plain_logits("llama", tuple(PROMPT))[-1].expand(2, -1)
    for table in (scattered, reverse):
        bench.prefill(PROMPT[:-1], table, chunk=9)
    logits = bench.runner.forward([Chunk(PROMPT[40:], 40, table, 1) for table in (scattered, reverse)])
    torch.testing.assert_close(logits, expected, atol=ROUNDING, rtol=ROUNDING)


def test_a_shared_prefix_is_computed_once() -> None:
    bench = Bench(tiny_model("llama"))
    own = bench.blocks(11)
    bench.prefill(PROMPT, own)
    keys = [bytes([index]) for index in range(5)]
    for index, key in enumerate(keys):
        assert bench.pool.publish(own[index], key, keys[index - 1] if index else b"")
    shared = [block for key in keys if (block := bench.pool.acquire(key)) is not None]
    branch = PROMPT[:20] + OTHER_PROMPT[:9]
    logits = bench.prefill(branch, [*shared, *bench.blocks(3)], start=20)
    expected = plain_logits("llama", tuple(branch))[-1]
    torch.testing.assert_close(logits, expected, atol=ROUNDING, rtol=ROUNDING)


@pytest.mark.parametrize("gather_tokens", [0, 512])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_but_a_sequences_own_tokens_is_read(gather_tokens: int, layout: Layout) -> None:
    bench = Bench(tiny_model("llama"), gather_tokens=gather_tokens, layout=layout)
    bench.pool.keys_and_values.fill_(torch.nan)
    bench.blocks(3)
    prompts, tables = (PROMPT[:6], OTHER_PROMPT[:33]), (bench.blocks(), bench.blocks())
    for prompt, table in zip(prompts, tables, strict=True):
        bench.prefill(prompt[:-1], table, chunk=7)
    chunks = [Chunk(p[-1:], len(p) - 1, table, 1) for p, table in zip(prompts, tables, strict=True)]
    expected = torch.stack([plain_logits("llama", tuple(prompt))[-1] for prompt in prompts])
    torch.testing.assert_close(bench.runner.forward(chunks), expected, atol=ROUNDING, rtol=ROUNDING)


def test_published_blocks_are_not_written() -> None:
    bench = Bench(tiny_model("llama"))
    blocks = bench.blocks(2)
    bench.prefill(PROMPT[:8], blocks)
    bench.pool.publish(blocks[0], b"a", b"")
    before = bench.pool.keys_and_values.clone()
    with pytest.raises(InvariantError, match="is not private"):
        bench.prefill(PROMPT[:8], blocks, start=3)
    assert torch.equal(bench.pool.keys_and_values, before)


def moved(bench: Bench, blocks: Sequence[int], layout: Layout = "layer-first") -> tuple[Bench, list[int]]:
    """Copy blocks, as their bytes at rest, into another pool."""
    other = Bench(tiny_model("llama"), layout=layout)
    targets = other.blocks(len(blocks))
    for source, target in zip(blocks, targets, strict=True):
        data = bytearray(bench.pool.shape.block_bytes)
        bench.pool.read_block(source, memoryview(data))
        other.pool.write_block(target, memoryview(data))
    return other, targets


@pytest.mark.parametrize("gather_tokens", [0, 512])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_reloaded_blocks_give_the_very_same_logits(gather_tokens: int, layout: Layout) -> None:
    bench = Bench(tiny_model("llama"), gather_tokens=gather_tokens)
    blocks = bench.blocks(11)
    bench.prefill(PROMPT[:40], blocks)
    expected = bench.prefill(PROMPT, blocks, start=40)
    other, targets = moved(bench, blocks, layout)
    assert torch.equal(other.prefill(PROMPT, targets, start=40), expected)


@pytest.mark.parametrize("gather_tokens", [0, 512])
def test_a_shifted_block_changes_the_output(gather_tokens: int) -> None:
    bench = Bench(tiny_model("llama"), gather_tokens=gather_tokens)
    blocks = bench.blocks(11)
    bench.prefill(PROMPT[:40], blocks)
    other, targets = moved(bench, [blocks[1], *blocks[1:]])
    logits = other.prefill(PROMPT, targets, start=40)
    expected = plain_logits("llama", tuple(PROMPT))[-1]
    assert (logits - expected).abs().max() > 1000 * ROUNDING


def test_another_prompts_block_changes_the_output() -> None:
    bench = Bench(tiny_model("llama"))
    blocks, foreign = bench.blocks(11), bench.blocks(11)
    bench.prefill(PROMPT[:40], blocks)
    bench.prefill(OTHER_PROMPT[:40], foreign)
    logits = bench.prefill(PROMPT, [*blocks[:5], foreign[5], *blocks[6:]], start=40)
    expected = plain_logits("llama", tuple(PROMPT))[-1]
    assert (logits - expected).abs().max() > 1000 * ROUNDING


def test_attention_reads_what_the_pool_holds_not_what_was_just_computed() -> None:
    """With keys and values kept in 8 bits of mantissa, a single whole chunk is rounded as well."""
    model = tiny_model("llama")
    bench = Bench(model)
    bench.pool = new_pool(KVShape(2, 2, 16, BLOCK_TOKENS, torch.bfloat16), 64)
    bench.runner = ModelRunner(model, bench.pool, SdpaAttention())
    whole = bench.prefill(PROMPT, bench.blocks())
    in_chunks = bench.prefill(PROMPT, bench.blocks(), chunk=7)
    exact = plain_logits("llama", tuple(PROMPT))[-1]
    torch.testing.assert_close(whole, in_chunks, atol=ROUNDING, rtol=ROUNDING)
    assert (whole - exact).abs().max() > 100 * ROUNDING


def test_bfloat16_stays_within_its_rounding() -> None:
    bench = Bench(tiny_model("llama", torch.bfloat16))
    expected = plain_logits("llama", tuple(PROMPT), torch.bfloat16)[-1]
    for chunk in (7, 512):
        logits = bench.prefill(PROMPT, bench.blocks(), chunk)
        torch.testing.assert_close(logits, expected, atol=0.1, rtol=0.05)


def test_a_real_model_continues_as_plain_generate_does(smollm2: Path) -> None:
    loaded = load_model(smollm2)
    policy = LeafFirstLRU()
    pool = DevicePool(loaded.kv_shape, 64, loaded.device, policy, lambda *_: None, lambda *_: None, Clock())
    runner = ModelRunner(loaded.model, pool, SdpaAttention())
    prompt = list(range(500, 740, 3))
    blocks = pool.allocate(8)
    assert blocks is not None
    ids = list(prompt)
    logits = runner.forward([Chunk(prompt[:50], 0, blocks, 0)])
    logits = runner.forward([Chunk(prompt[50:], 50, blocks, 1)])
    for _ in range(16):
        ids.append(int(logits.argmax()))
        logits = runner.forward([Chunk(ids[-1:], len(ids) - 1, blocks, 1)])
    # What plain generate would choose after each token, from one pass over all of them.
    plain: Any = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    with torch.inference_mode():
        chosen = plain(torch.tensor([ids])).logits[0].argmax(-1).tolist()
    assert ids[len(prompt) :] == chosen[len(prompt) - 1 : -1]
