"""How large the models, prompts and tiers of each form of the benchmark are."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

BLOCK_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama's shape; its weights are random."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    @property
    def head_dim(self) -> int:
        """Numbers in one key of one head."""
        return self.hidden // self.heads

    @property
    def kv_token_bytes(self) -> int:
        """Bytes of one token's keys and values in 16 bits."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


@dataclass(frozen=True, slots=True)
class CaseSize:
    """The cases of others' faults: prompts, how many at once, and a pool too small for all of them.

    ``num_growing`` requests with prompts of a block fit in it beside a prompt of ``loaded_tokens``, and no
    more so when they have got their ``grown_tokens``.
    """

    prompt_tokens: int = 1502
    at_once: int = 32
    rounds: int = 3
    loaded_tokens: int = 1000
    num_growing: int = 8
    grown_tokens: int = 144
    pool_blocks: int = 120


@dataclass(frozen=True, slots=True)
class Size:
    """What one form of the benchmark runs. Tokens are of prompts where nothing else is said.

    ``served`` computes in bf16 and is timed; ``exact`` computes in fp32, where answers are equal.
    ``control_tokens`` is a prompt short enough that one wrong block in it shows. ``copied_bytes`` are moved
    between host and device, ``bandwidth_bytes`` on the device. ``grid_rates`` are over break-even.
    """

    served: Shape
    exact: Shape
    context_tokens: int
    equal_tokens: int
    control_tokens: int
    answer_tokens: int
    num_prompts: int
    ttft_tokens: tuple[int, ...]
    ttft_rounds: int
    decode_sequences: tuple[int, ...]
    decode_context: int
    decode_tokens: int
    attention_context: int
    prefill_tokens: int
    attention_repeats: int
    grid_tokens: int
    grid_rates: tuple[float | None, ...]
    copied_bytes: int
    bandwidth_bytes: int
    pool_bytes: int
    host_bytes: int
    disk_bytes: int
    exact_pool_bytes: int
    step_tokens: int = 2048
    cases: CaseSize = field(default_factory=CaseSize)


LLAMA_8B = Shape(32, 4096, 32, 8, 14336, 128_256)
_LLAMA_1B = Shape(16, 2048, 32, 8, 8192, 32_000)
_EXACT = Shape(8, 1024, 16, 4, 3072, 32_000)

FULL = Size(
    served=LLAMA_8B,
    exact=_EXACT,
    context_tokens=40_960,
    equal_tokens=2040,
    control_tokens=88,
    answer_tokens=32,
    num_prompts=3,
    ttft_tokens=(8192, 32_768),
    ttft_rounds=2,
    decode_sequences=(1, 64),
    decode_context=1024,
    decode_tokens=64,
    attention_context=1024,
    prefill_tokens=2048,
    attention_repeats=20,
    grid_tokens=8192,
    grid_rates=(None, 0.3, 1.0, 3.0),
    copied_bytes=512 << 20,
    bandwidth_bytes=2 << 30,
    pool_bytes=12 << 30,
    host_bytes=6 << 30,
    disk_bytes=12 << 30,
    exact_pool_bytes=1 << 30,
)

SMOKE = replace(
    FULL,
    served=_LLAMA_1B,
    context_tokens=16_384,
    equal_tokens=1000,
    answer_tokens=16,
    num_prompts=2,
    ttft_tokens=(8192,),
    decode_tokens=32,
    attention_repeats=10,
    grid_rates=(None, 1.0),
    copied_bytes=256 << 20,
    bandwidth_bytes=1 << 30,
    pool_bytes=4 << 30,
    host_bytes=2 << 30,
    disk_bytes=4 << 30,
)

TINY = Size(
    served=Shape(2, 64, 4, 2, 96, 500),
    exact=Shape(2, 64, 4, 2, 96, 500),
    context_tokens=2048,
    equal_tokens=200,
    control_tokens=88,
    answer_tokens=16,
    num_prompts=2,
    ttft_tokens=(200, 400),
    ttft_rounds=1,
    decode_sequences=(1, 8),
    decode_context=64,
    decode_tokens=12,
    attention_context=64,
    prefill_tokens=128,
    attention_repeats=2,
    grid_tokens=256,
    grid_rates=(None, 1.0),
    copied_bytes=1 << 18,
    bandwidth_bytes=4 << 20,
    pool_bytes=8 << 20,
    host_bytes=8 << 20,
    disk_bytes=16 << 20,
    exact_pool_bytes=16 << 20,
    step_tokens=128,
    cases=CaseSize(
        prompt_tokens=302,
        at_once=8,
        rounds=2,
        loaded_tokens=160,
        num_growing=4,
        grown_tokens=64,
        pool_blocks=24,
    ),
)
