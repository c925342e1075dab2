"""The probe that picks an attention: whatever a kernel's name promises, its numbers decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from backends.kv_shape import KVShape, Layout
from engine_adapter.engine.attention import Attend, AttentionBackend, AttentionKind, Span
from engine_adapter.engine.attention_choice import choose_attention, first_that_agrees
from engine_adapter.engine.kv_forms import FP8, scale_dtype_of
from engine_adapter.engine.sdpa import SdpaAttention
from engine_adapter.engine.varlen import VarlenAttention
from kvstore.errors import ConfigError

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FULL = AttentionKind()
KINDS = [FULL, AttentionKind(window=4096), AttentionKind(softcap=50.0), AttentionKind(window=3, softcap=20.0)]


def shape(dtype: torch.dtype = torch.float32, block_tokens: int = 16) -> KVShape:
    return KVShape(1, 3, 64, block_tokens, dtype, scale_dtype_of(dtype))


Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]


class Missing:
    """A kernel that this torch does not have."""

    name = "missing"
    layout: Layout = "block-first"

    def plan(self, *_facts: object) -> Attend:
        raise ImportError("no module named flash")


class Altered(SdpaAttention):
    """A kernel that understands the spans otherwise than meant."""

    name = "altered"

    def alter(self, span: Span) -> Span:
        raise NotImplementedError

    def plan(
        self, spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        return super().plan([self.alter(span) for span in spans], block_tokens, dtype, device)


class IgnoresTable(Altered):
    """Reads the pool from its beginning, as if blocks lay in order."""

    def alter(self, span: Span) -> Span:
        return Span(span.begin, span.start, span.end, tuple(range(len(span.blocks))))


class SeesOneTokenLess(Altered):
    """Does not let a token attend to itself, except at the start."""

    def alter(self, span: Span) -> Span:
        return Span(span.begin, span.start - 1, span.end - 1, span.blocks) if span.start else span


Change = Callable[[Attend, Tensors, int | None, float | None], torch.Tensor]


class Mistaken(SdpaAttention):
    """A kernel that makes something else of its arguments."""

    name = "mistaken"

    def __init__(self, change: Change) -> None:
        super().__init__()
        self._change = change

    def plan(
        self, spans: Sequence[Span], block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> Attend:
        planned = super().plan(spans, block_tokens, dtype, device)
        return lambda query, keys, values, scaling, window, softcap: self._change(
            planned, (query, keys, values, scaling), window, softcap
        )


wrong_shape = Mistaken(lambda attend, tensors, window, cap: attend(*tensors, window, cap).transpose(1, 2))
ignores_window = Mistaken(lambda attend, tensors, _, cap: attend(*tensors, None, cap))
ignores_cap = Mistaken(lambda attend, tensors, window, _: attend(*tensors, window, None))
# Takes the window for the keys before the query's own.
one_key_more = Mistaken(lambda attend, tensors, window, cap: attend(*tensors, window and window + 1, cap))


def choose(
    candidates: Sequence[AttentionBackend], dtype: torch.dtype = torch.float32, kind: AttentionKind = FULL
) -> tuple[str, dict[str, str]]:
    choice = first_that_agrees(candidates, 9, shape(dtype), dtype, CPU, [kind])
    return choice.attention.name, choice.rejected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gather_tokens", [0, 30, 1 << 30])
@pytest.mark.parametrize("num_heads", [3, 9])
@pytest.mark.parametrize("block_tokens", [1, 16])
def test_sdpa_agrees(dtype: torch.dtype, gather_tokens: int, num_heads: int, block_tokens: int) -> None:
    sdpa = SdpaAttention(gather_tokens)
    choice = first_that_agrees([sdpa], num_heads, shape(dtype, block_tokens), dtype, CPU, KINDS)
    assert choice.rejected == {}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gather_tokens", [0, 1 << 30])
@pytest.mark.parametrize("form", [torch.int8, FP8])
def test_sdpa_reads_8_bits(dtype: torch.dtype, gather_tokens: int, form: torch.dtype) -> None:
    sdpa = SdpaAttention(gather_tokens)
    assert first_that_agrees([sdpa], 9, shape(form), dtype, CPU, KINDS).rejected == {}


@pytest.mark.parametrize("form", [torch.int8, FP8])
def test_a_kernel_that_reads_no_8_bits_is_passed_over(form: torch.dtype) -> None:
    both: list[AttentionBackend] = [VarlenAttention(), SdpaAttention()]
    choice = first_that_agrees(both, 9, shape(form), torch.float32, CPU, [FULL])
    assert choice.attention.name == "sdpa"
    assert choice.rejected == {"varlen": "fails: it reads plain keys and values alone"}


@pytest.mark.parametrize("wrong", [IgnoresTable(0), SeesOneTokenLess(0)])
@pytest.mark.parametrize("form", [torch.int8, FP8])
def test_a_wrong_kernel_is_found_in_8_bits_too(wrong: Altered, form: torch.dtype) -> None:
    choice = first_that_agrees([wrong, SdpaAttention()], 9, shape(form), torch.float32, CPU, [FULL])
    assert choice.rejected["altered"].startswith("is wrong by ")


def test_the_first_candidate_that_agrees_wins() -> None:
    first, second = SdpaAttention(0), SdpaAttention(100)
    assert first_that_agrees([first, second], 9, shape(), torch.float32, CPU, KINDS).attention is first


def test_a_missing_kernel_is_passed_over_with_its_reason() -> None:
    name, rejected = choose([Missing(), SdpaAttention()])
    assert (name, rejected) == ("sdpa", {"missing": "fails: no module named flash"})


def test_torchs_paged_kernel_is_passed_over_on_a_cpu() -> None:
    name, rejected = choose([VarlenAttention(), SdpaAttention()])
    assert name == "sdpa"
    assert rejected["varlen"].startswith("fails: Could not run")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [IgnoresTable(0), SeesOneTokenLess(0)])
def test_a_kernel_that_computes_something_else_is_passed_over(wrong: Altered, dtype: torch.dtype) -> None:
    name, rejected = choose([wrong, SdpaAttention()], dtype)
    assert name == "sdpa"
    assert rejected["altered"].startswith("is wrong by ")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (ignores_window, AttentionKind(window=4096)),
        (one_key_more, AttentionKind(window=4096)),
        (one_key_more, AttentionKind(window=5, softcap=50.0)),
        (ignores_cap, AttentionKind(softcap=50.0)),
    ],
)
def test_a_kernel_that_is_wrong_for_a_kind_of_layer_is_passed_over(
    wrong: Mistaken, kind: AttentionKind, dtype: torch.dtype
) -> None:
    assert choose([wrong], dtype) == ("mistaken", {})
    name, rejected = choose([wrong, SdpaAttention()], dtype, kind)
    assert name == "sdpa"
    assert rejected["mistaken"].startswith("is wrong by ")


def test_torchs_paged_kernel_says_that_it_caps_no_scores() -> None:
    _, rejected = choose([VarlenAttention(), SdpaAttention()], kind=AttentionKind(softcap=50.0))
    assert rejected["varlen"] == "fails: it cannot cap scores"


def test_a_kernel_with_another_layout_is_passed_over() -> None:
    _, rejected = choose([wrong_shape, SdpaAttention()])
    assert rejected["mistaken"].startswith("gives the shape (1, 9, ")


def test_no_attention_at_all_is_refused_with_every_reason() -> None:
    with pytest.raises(ConfigError, match=r"no attention works on cpu .* missing fails: no module"):
        choose([Missing()])


def test_a_cpu_runs_sdpa() -> None:
    choice = choose_attention(9, shape(), torch.float32, CPU, KINDS)
    assert choice.attention.name == "sdpa"
