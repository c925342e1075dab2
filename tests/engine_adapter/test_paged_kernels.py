"""FlashInfer and torch's paged kernel, on strict fakes, and FlexAttention against plain arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention

from backends.kv_shape import KVShape
from engine_adapter.engine.attention import AttentionBackend, AttentionKind, DecodePlan, Span
from engine_adapter.engine.attention_choice import candidates, choose_attention, first_that_agrees
from engine_adapter.engine.flashinfer import FlashInferAttention
from engine_adapter.engine.flex import FlexAttention
from engine_adapter.engine.sdpa import SdpaAttention
from engine_adapter.engine.varlen import VarlenAttention
from tests.engine_adapter import fake_kernels
from tests.engine_adapter.fake_kernels import Wrapper

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
FULL, WINDOW = AttentionKind(), AttentionKind(window=4096)
CAPPED = [AttentionKind(softcap=50.0), AttentionKind(window=3, softcap=20.0)]
KINDS: dict[str, list[AttentionKind]] = {
    "flashinfer": [FULL, WINDOW, *CAPPED], "flex": [FULL, WINDOW, *CAPPED], "varlen": [FULL, WINDOW],
}  # fmt: skip
SIZE, HEADS, KV_HEADS, DIM = 4, 6, 2, 8
SPANS = [Span(0, 5, 9, (7, 2, 5)), Span(4, 0, 6, (1, 6)), Span(10, 3, 4, (0,)), Span(11, 8, 9, (7, 2, 4))]
DECODES = [Span(0, 8, 9, (7, 2, 5)), Span(1, 3, 4, (0,)), Span(2, 10, 11, (3, 1, 6))]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise it is traced for every shape, to compute the same.
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    fake_kernels.install_flashinfer(monkeypatch)
    fake_kernels.install_varlen(monkeypatch)


@pytest.fixture
def wrappers(monkeypatch: pytest.MonkeyPatch) -> list[Wrapper]:
    """Return the wrappers that are made."""
    made: list[Wrapper] = []
    for kind in (
        fake_kernels.BatchDecodeWithPagedKVCacheWrapper,
        fake_kernels.BatchPrefillWithPagedKVCacheWrapper,
    ):
        make = kind.__init__

        def noting(self: Wrapper, *args: object, _make: object = make, **options: object) -> None:
            made.append(self)
            _make(self, *args, **options)  # type: ignore[operator]

        monkeypatch.setattr(kind, "__init__", noting)
    return made


@pytest.fixture(params=["flashinfer", "flex", "varlen"])
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    made: dict[str, type[AttentionBackend]] = {
        "flashinfer": FlashInferAttention, "flex": FlexAttention, "varlen": VarlenAttention,
    }  # fmt: skip
    return made[request.param]()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_heads", [3, 9, 24])
@pytest.mark.parametrize("block_tokens", [1, 16])
def test_agrees_with_plain_arithmetic(
    backend: AttentionBackend, dtype: torch.dtype, num_heads: int, block_tokens: int
) -> None:
    shape = KVShape(1, 3, 16, block_tokens, dtype, None)
    both = [backend, SdpaAttention()]
    choice = first_that_agrees(both, num_heads, shape, dtype, CPU, KINDS[backend.name])
    assert choice.rejected == {}


def layers_of(pool: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield keys and values of each layer as a block-first pool has them, and both layer-first."""
    num_blocks, num_layers = pool.shape[:2]
    flat = pool.view(-1, KV_HEADS, DIM)
    num_slots = ((num_blocks - 1) * 2 * num_layers + 1) * SIZE
    for layer in range(num_layers):
        keys, values = (flat[side * SIZE :][:num_slots] for side in (2 * layer, 2 * layer + 1))
        side_by_side = pool[:, layer].transpose(0, 1).reshape(2, -1, KV_HEADS, DIM)
        yield keys, values, side_by_side


@pytest.mark.parametrize("spans", [SPANS, DECODES])
@pytest.mark.parametrize("window", [None, 1, 5])
def test_pages_of_a_block_first_pool_are_found(
    backend: AttentionBackend, spans: Sequence[Span], window: int | None
) -> None:
    pool = torch.randn(8, 3, 2, SIZE, KV_HEADS, DIM)
    query = torch.randn(1, HEADS, spans[-1].rows.stop, DIM)
    pages = [
        Span(span.begin, span.start, span.end, tuple(6 * block for block in span.blocks)) for span in spans
    ]
    attend = backend.plan(pages, SIZE, query.dtype, CPU)
    clean = SdpaAttention().plan(spans, SIZE, query.dtype, CPU)
    for keys, values, sides in layers_of(pool):
        out = attend(query, keys, values, 0.3, window, None)
        torch.testing.assert_close(out, clean(query, sides[0], sides[1], 0.3, window, None))


def test_nothing_that_is_not_seen_is_read(backend: AttentionBackend) -> None:
    """Where a sequence ends in the middle of a page, the rest of that page may hold anything."""
    keys, values = torch.randn(2, 8 * SIZE, KV_HEADS, DIM)
    query = torch.randn(1, HEADS, 3, DIM)
    expected = SdpaAttention().plan(DECODES, SIZE, query.dtype, CPU)(query, keys, values, 0.3, None, None)
    for page, first in ((5, 1), (6, 3)):
        keys[page * SIZE + first : (page + 1) * SIZE] = torch.nan
        values[page * SIZE + first : (page + 1) * SIZE] = torch.nan
    out = backend.plan(DECODES, SIZE, query.dtype, CPU)(query, keys, values, 0.3, None, None)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("spans", [SPANS, DECODES])
def test_flashinfer_plans_once_for_each_kind_in_a_step(
    wrappers: list[Wrapper], spans: Sequence[Span]
) -> None:
    keys, values = torch.randn(2, 8 * SIZE, KV_HEADS, DIM)
    query = torch.randn(1, HEADS, spans[-1].rows.stop, DIM)
    attention = FlashInferAttention()
    for num_steps in (1, 2):
        attend = attention.plan(spans, SIZE, query.dtype, CPU)
        for _layer in range(3):
            attend(query, keys, values, 0.3, None, None)
            attend(query, keys, values, 0.3, 5, None)
        assert [wrapper.num_plans for wrapper in wrappers] == [num_steps, num_steps]


@pytest.mark.parametrize(("num_heads", "use_tensor_cores"), [(2, False), (6, False), (8, True)])
def test_flashinfer_decodes_by_its_decode_wrapper(
    wrappers: list[Wrapper], num_heads: int, *, use_tensor_cores: bool
) -> None:
    keys, values = torch.randn(2, 8 * SIZE, KV_HEADS, DIM)
    query = torch.randn(1, num_heads, len(DECODES), DIM)
    FlashInferAttention().plan(DECODES, SIZE, query.dtype, CPU)(query, keys, values, 0.3, None, None)
    (wrapper,) = wrappers
    assert isinstance(wrapper, fake_kernels.BatchDecodeWithPagedKVCacheWrapper)
    assert wrapper.use_tensor_cores == use_tensor_cores


def test_flex_is_compiled_for_kinds_of_steps_and_not_for_every_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", False)
    num_compiled = 0

    def compiler(graph: torch.fx.GraphModule, _inputs: object) -> Callable[..., Any]:
        nonlocal num_compiled
        num_compiled += 1
        return graph.forward

    attention = FlexAttention()
    monkeypatch.setattr(attention, "_kernel", lambda _device: attention._run_compiled)
    compiled = torch.compile(flex_attention.flex_attention, backend=compiler)
    monkeypatch.setattr(attention, "_compiled", lambda: compiled)
    keys, values = torch.randn(2, 40 * SIZE, KV_HEADS, DIM)
    for num_queries in (30, 17, 40, 21, 64, 33):
        spans = [Span(0, 5, 5 + num_queries, tuple(range(20))), Span(num_queries, 8, 9, (30, 31, 32))]
        query = torch.randn(1, HEADS, num_queries + 1, DIM)
        for window in (None, 6):
            with torch.inference_mode():
                out = attention.plan(spans, SIZE, query.dtype, CPU)(query, keys, values, 0.3, window, None)
            clean = SdpaAttention().plan(spans, SIZE, query.dtype, CPU)
            torch.testing.assert_close(out, clean(query, keys, values, 0.3, window, None))
    assert 0 < num_compiled <= 4


@pytest.mark.parametrize(
    ("window", "pages"), [(None, [[7, 2, 5], [0], [3, 1, 6]]), (5, [[2, 5], [0], [1, 6]])]
)
def test_flex_visits_the_pages_of_the_step_that_it_was_filled_for_last(
    monkeypatch: pytest.MonkeyPatch, window: int | None, pages: list[list[int]]
) -> None:
    visited: list[list[list[int]]] = []

    def kernel(query: torch.Tensor, *_sides: object, block_mask: Any, **_options: object) -> torch.Tensor:
        each = zip(block_mask.kv_indices[:, 0, 0], block_mask.kv_num_blocks[:, 0, 0], strict=True)
        visited.append([numbers[:num].tolist() for numbers, num in each])
        return query

    attention = FlexAttention()
    monkeypatch.setattr(attention, "_kernel", lambda _device: kernel)
    keys, values = torch.randn(2, 8 * SIZE, KV_HEADS, DIM)
    query = torch.randn(1, HEADS, len(DECODES), DIM)
    plan = attention.decode_plan(len(DECODES), 4, SIZE, CPU)
    for spans in ([Span(row, 0, 1, (4,)) for row in range(len(DECODES))], DECODES):
        plan.fill(spans)
        plan(query, keys, values, 0.3, window, None)
    assert visited == [[[4], [4], [4]], pages]


def test_a_gpu_tries_flashinfer_first_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.name for one in candidates(CUDA)] == ["flashinfer", "varlen", "flex", "sdpa"]
    monkeypatch.undo()
    assert [one.name for one in candidates(CUDA)] == ["varlen", "flex", "sdpa"]


def test_a_missing_flashinfer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    shape = KVShape(1, 3, 16, 16, torch.float32, None)
    both: list[AttentionBackend] = [FlashInferAttention(), SdpaAttention()]
    choice = first_that_agrees(both, 3, shape, torch.float32, CPU, [FULL])
    assert choice.rejected == {"flashinfer": "fails: No module named 'flashinfer'"}


class FilledOnce:
    """A plan that takes the first step that it computes for all that follow."""

    def __init__(self, plan: DecodePlan) -> None:
        self._plan = plan
        self._has_computed = False

    def fill(self, spans: Sequence[Span]) -> None:
        if not self._has_computed:
            self._plan.fill(spans)

    def __call__(self, *args: Any, **named: Any) -> torch.Tensor:
        self._has_computed = True
        return self._plan(*args, **named)


class ForgetsToFill(VarlenAttention):
    def decode_plan(self, batch: int, most_pages: int, block_tokens: int, device: torch.device) -> DecodePlan:
        return FilledOnce(super().decode_plan(batch, most_pages, block_tokens, device))


def test_a_backend_that_is_wrong_only_where_steps_are_recorded_is_passed_over() -> None:
    shape = KVShape(1, 3, 16, 16, torch.float32, None)
    wrong: list[AttentionBackend] = [ForgetsToFill(), SdpaAttention()]
    choice = first_that_agrees(wrong, 3, shape, torch.float32, CPU, [FULL])
    assert choice.rejected["varlen"].startswith("is wrong by ")


@pytest.mark.parametrize("form", [torch.int8, torch.float8_e4m3fn])
def test_8_bits_are_refused(backend: AttentionBackend, form: torch.dtype) -> None:
    shape = KVShape(1, 3, 16, 16, form, torch.bfloat16)
    choice = first_that_agrees([backend, SdpaAttention()], 3, shape, torch.float32, CPU, [FULL])
    assert choice.rejected == {backend.name: "fails: it reads plain keys and values alone"}


def test_a_cpu_needs_none_of_them() -> None:
    shape = KVShape(1, 3, 16, 16, torch.float32, None)
    assert choose_attention(3, shape, torch.float32, CPU, [FULL]).attention.name == "sdpa"
