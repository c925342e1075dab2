"""Decode steps in graphs, in miniature: what is recorded is a trace of tensor operations on fixed memory.

As in a graph of a GPU, no Python runs when it is replayed, and whatever was no tensor is what it was then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import flex_attention

from backends.device import DevicePool
from backends.kv_shape import KVShape, Layout
from engine_adapter.calibrate import measure_steps
from engine_adapter.engine.attention import AttentionBackend
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.decode_graphs import GraphSetup, Record, Run, graph_setup, graph_sizes
from engine_adapter.engine.flashinfer import FlashInferAttention
from engine_adapter.engine.flex import FlexAttention
from engine_adapter.engine.models import load_model
from engine_adapter.engine.runner import Chunk, ModelRunner
from engine_adapter.engine.sdpa import SdpaAttention
from engine_adapter.engine.varlen import VarlenAttention
from kvstore.clock import Clock
from policies.cost_model import Work
from policies.lru import LeafFirstLRU
from tests.engine_adapter import fake_kernels
from tests.engine_adapter.pool_kinds import in_every_pool
from tests.engine_adapter.rig import MakeRig, greedy, prompt_of
from tests.engine_adapter.test_runner import BLOCK_TOKENS, OTHER_PROMPT, PROMPT, ROUNDING, Bench, tiny_model

CONTEXT = 96
BACKENDS: list[AttentionBackend] = [FlashInferAttention(), VarlenAttention(), FlexAttention()]


@pytest.fixture(autouse=True)
def _kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    fake_kernels.install_flashinfer(monkeypatch)
    fake_kernels.install_varlen(monkeypatch)


class Recorder:
    """Records by tracing, and counts."""

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replayed = 0

    def __call__(self, run: Run) -> Run:
        trace = make_fx(run)()
        logits: torch.Tensor = torch.full_like(trace(), torch.nan)
        self.num_recorded += 1

        def replay() -> torch.Tensor:
            self.num_replayed += 1
            return logits.copy_(trace())

        return replay

    def setup(self, max_sequences: int = 8, context_tokens: int = CONTEXT) -> GraphSetup:
        return GraphSetup(lambda: self, max_sequences, context_tokens)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def bench_of(
    family: str,
    attention: AttentionBackend,
    graphs: GraphSetup | None,
    layout: Layout = "layer-first",
    num_blocks: int = 256,
) -> Bench:
    bench = Bench(tiny_model(family))
    policy = LeafFirstLRU()
    bench.pool = DevicePool(
        bench.pool.shape, num_blocks, "cpu", policy, lambda *_: None, lambda *_: None, Clock(), layout
    )
    bench.runner = ModelRunner(tiny_model(family), bench.pool, attention, graphs=graphs)
    return bench


class Batch:
    """Prompts that were computed up to their last token, which is decoded in one step."""

    def __init__(self, bench: Bench, prompts: Sequence[Sequence[int]]) -> None:
        self.bench = bench
        self.ids = [list(prompt) for prompt in prompts]
        self.tables = [bench.blocks(-(-(len(ids) + 12) // BLOCK_TOKENS)) for ids in self.ids]
        for ids, table in zip(self.ids, self.tables, strict=True):
            bench.prefill(ids[:-1], table)

    def step(self) -> torch.Tensor:
        chunks = [
            Chunk(ids[-1:], len(ids) - 1, table, 1) for ids, table in zip(self.ids, self.tables, strict=True)
        ]
        return self.bench.runner.forward(chunks)

    def generate(self, num: int) -> list[list[int]]:
        for _ in range(num):
            for ids, token in zip(self.ids, self.step().argmax(-1).tolist(), strict=True):
                ids.append(token)
        return self.ids


def prompts_of(num: int) -> list[list[int]]:
    return [(PROMPT, OTHER_PROMPT)[i % 2][i : 10 + 3 * i] for i in range(num)]


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (20, [1, 2, 4, 8, 16, 20]),
        (32, [1, 2, 4, 8, 16, 24, 32]),
    ],
)
def test_sizes_reach_up_to_the_most_sequences(most: int, sizes: list[int]) -> None:
    assert graph_sizes(most) == sizes


@pytest.mark.parametrize("attention", BACKENDS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("layout", "num"), [("layer-first", 3), ("block-first", 1), ("block-first", 5), ("block-first", 8)]
)
def test_steps_in_graphs_choose_the_same_tokens(
    recorder: Recorder, attention: AttentionBackend, layout: Layout, num: int
) -> None:
    plain = Batch(bench_of("llama", SdpaAttention(), None), prompts_of(num))
    replayed = Batch(bench_of("llama", attention, recorder.setup(), layout), prompts_of(num))
    assert replayed.generate(9) == plain.generate(9)
    assert (recorder.num_recorded, recorder.num_replayed) == (1, 10)  # and one to try it


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "mixtral", "qwen3_moe", "phi3"])
def test_families_with_windows_caps_and_experts_can_be_recorded(recorder: Recorder, family: str) -> None:
    plain = Batch(bench_of(family, SdpaAttention(), None), prompts_of(3))
    replayed = Batch(bench_of(family, FlashInferAttention(), recorder.setup()), prompts_of(3))
    assert replayed.generate(9) == plain.generate(9)
    assert recorder.num_replayed == 10


@pytest.mark.parametrize("attention", BACKENDS, ids=lambda one: one.name)
def test_padding_writes_nowhere_but_to_its_own_page(recorder: Recorder, attention: AttentionBackend) -> None:
    bench = bench_of("llama", attention, recorder.setup(), "block-first")
    batch = Batch(bench, prompts_of(5))
    before = bench.pool.keys_and_values.clone()
    batch.step()
    written = (bench.pool.keys_and_values != before).flatten(1).any(1).nonzero().flatten().tolist()
    own = [table[(len(ids) - 1) // BLOCK_TOKENS] for ids, table in zip(batch.ids, batch.tables, strict=True)]
    assert written == sorted([*own, bench.pool.num_blocks])


@pytest.mark.parametrize("attention", BACKENDS[:2], ids=lambda one: one.name)
def test_what_lies_in_other_pages_is_not_read(recorder: Recorder, attention: AttentionBackend) -> None:
    """Also where they were a sequence's own when the graph was made. Plain FlexAttention visits all pages."""
    bench = bench_of("llama", attention, recorder.setup(), "block-first")
    Batch(bench, prompts_of(8)).step()
    bench.pool.keys_and_values.fill_(torch.nan)
    batch = Batch(bench, prompts_of(5))
    plain = Batch(bench_of("llama", SdpaAttention(), None), prompts_of(5))
    torch.testing.assert_close(batch.step(), plain.step(), atol=ROUNDING, rtol=ROUNDING)


def test_one_graph_serves_all_sizes_up_to_its_own(recorder: Recorder) -> None:
    bench = bench_of("llama", VarlenAttention(), recorder.setup())
    plain = bench_of("llama", SdpaAttention(), None)
    for num in (5, 8, 6):
        step = Batch(bench, prompts_of(num)).step()
        torch.testing.assert_close(step, Batch(plain, prompts_of(num)).step(), atol=ROUNDING, rtol=ROUNDING)
    assert recorder.num_recorded == 1


def test_only_plain_decodes_are_replayed(recorder: Recorder) -> None:
    bench = bench_of("llama", VarlenAttention(), recorder.setup())
    table, other = bench.blocks(), bench.blocks()
    bench.prefill(PROMPT[:9], table)
    bench.runner.forward([Chunk(PROMPT[9:10], 9, table, 0)])
    bench.runner.forward([Chunk(PROMPT[9:10], 9, table, 1), Chunk(PROMPT[:3], 0, other, 1)])
    bench.runner.forward([Chunk(PROMPT[9:11], 9, table, 1)])
    assert recorder.num_recorded == 0
    bench.runner.forward([Chunk(PROMPT[9:10], 9, table, 1)])
    assert recorder.num_recorded == 1


def test_more_sequences_or_longer_ones_than_planned_for_are_computed_as_before(recorder: Recorder) -> None:
    bench = bench_of("llama", VarlenAttention(), recorder.setup(max_sequences=2, context_tokens=12))
    assert Batch(bench, prompts_of(3)).step().shape == (3, 128)
    assert Batch(bench, [PROMPT[:13]]).step().shape == (1, 128)
    assert recorder.num_recorded == 0
    assert Batch(bench, [PROMPT[:12]]).step().shape == (1, 128)
    assert recorder.num_recorded == 1


def test_logits_are_the_callers_own(recorder: Recorder) -> None:
    batch = Batch(bench_of("llama", VarlenAttention(), recorder.setup()), prompts_of(2))
    first = batch.step()
    kept = first.clone()
    batch.ids = [[*ids[:-1], 5] for ids in batch.ids]
    assert not torch.equal(batch.step(), kept)
    assert torch.equal(first, kept)


def fails(_run: Run) -> Run:
    raise RuntimeError("operation not permitted when stream is capturing")


def gives_other_logits(run: Run) -> Run:
    return lambda: run().roll(1, -1)


def gives_nothing(run: Run) -> Run:
    return lambda: torch.full_like(run(), torch.nan)


@pytest.mark.parametrize("record", [fails, gives_other_logits, gives_nothing])
def test_what_cannot_be_recorded_is_computed_as_before_and_told_once(
    record: Record, caplog: pytest.LogCaptureFixture
) -> None:
    setup = GraphSetup(lambda: record, 8, CONTEXT)
    plain = Batch(bench_of("llama", SdpaAttention(), None), prompts_of(3))
    batch = Batch(bench_of("llama", VarlenAttention(), setup), prompts_of(3))
    with caplog.at_level(logging.WARNING):
        assert batch.generate(6) == plain.generate(6)
        Batch(batch.bench, prompts_of(1)).step()
    (told,) = caplog.messages
    assert told.startswith("decode steps are not recorded: ")


def test_logits_that_are_no_numbers_do_not_speak_against_a_graph(recorder: Recorder) -> None:
    bench = bench_of("llama", VarlenAttention(), recorder.setup())
    batch = Batch(bench, prompts_of(1))
    bench.pool.keys_and_values[:, :, batch.tables[0][0] * BLOCK_TOKENS] = torch.nan
    assert batch.step().isnan().all()
    assert recorder.num_replayed == 2


def test_graphs_are_made_anew_when_the_weights_were_changed(recorder: Recorder) -> None:
    bench = bench_of("llama", VarlenAttention(), recorder.setup())
    Batch(bench, prompts_of(1)).step()
    bench.runner.model_changed()
    Batch(bench, prompts_of(1)).step()
    assert recorder.num_recorded == 2


def test_an_attention_that_plans_no_decodes_takes_no_block(recorder: Recorder) -> None:
    bench = bench_of("llama", SdpaAttention(), recorder.setup())
    assert bench.pool.num_free == bench.pool.num_blocks == 256
    Batch(bench, prompts_of(1)).step()
    assert recorder.num_recorded == 0


def test_pools_in_8_bits_do_without(recorder: Recorder) -> None:
    model = tiny_model("llama")
    shape = KVShape(2, 2, 16, BLOCK_TOKENS, torch.int8, torch.bfloat16)
    pool = DevicePool(shape, 8, "cpu", LeafFirstLRU(), lambda *_: None, lambda *_: None, Clock())
    ModelRunner(model, pool, VarlenAttention(), None, torch.ones(2, 2, 16), recorder.setup())
    assert pool.num_blocks == 8


@in_every_pool
@pytest.mark.parametrize("attention", BACKENDS, ids=lambda one: one.name)
def test_the_engine_gives_the_same_answers_and_everything_adds_up(
    make_rig: MakeRig, recorder: Recorder, attention: AttentionBackend
) -> None:
    graphs = recorder.setup(max_sequences=6, context_tokens=200)
    plain, rig = make_rig(max_sequences=6), make_rig(attention=attention, graphs=graphs, max_sequences=6)
    requests = [greedy(prompt_of(9 + 7 * i, i), 4 + 3 * i) for i in range(6)]
    for source in ("computed", "host"):
        answers = rig.generate_together(requests)
        assert [one.token_ids for one in answers] == [
            one.token_ids for one in plain.generate_together(requests)
        ]
        assert answers[5].usage.tokens_by_source.get(source, 0) >= 32
        assert rig.engine.flush(10)
        rig.forget_device()
    assert recorder.num_replayed > 10
    assert rig.pool.num_blocks == 63


class NotedSteps(CostBook):
    """Keeps what it is told of steps."""

    def __init__(self, block_bytes: int, memory_tier: str | None = None) -> None:
        super().__init__(block_bytes, memory_tier)
        self.noted: list[Work] = []

    def note_step(self, work: Work, took_s: float, now_s: float) -> None:
        self.noted.append(work)
        super().note_step(work, took_s, now_s)


def test_a_step_that_was_recorded_also_anew_is_not_taken_for_what_steps_cost(
    make_rig: MakeRig, recorder: Recorder
) -> None:
    books: list[NotedSteps] = []

    def make_costs(block_bytes: int, memory_tier: str | None) -> NotedSteps:
        books.append(NotedSteps(block_bytes, memory_tier))
        return books[-1]

    rig = make_rig(attention=VarlenAttention(), graphs=recorder.setup(), make_costs=make_costs)
    rig.engine.generate(greedy(prompt_of(20, 1), 6))
    decodes = [work for work in books[0].noted if work.decodes]
    assert recorder.num_recorded == 1
    assert len(decodes) == 4  # of five
    rig.engine.generate(greedy(prompt_of(20, 2), 6))
    assert len([work for work in books[0].noted if work.decodes]) == 9
    rig.engine.model_changed()
    rig.engine.generate(greedy(prompt_of(20, 3), 6))
    assert len([work for work in books[0].noted if work.decodes]) == 13


def test_measuring_at_the_start_records_before_it_times(recorder: Recorder) -> None:
    bench, costs = bench_of("llama", VarlenAttention(), recorder.setup(), num_blocks=300), NotedSteps(1)
    is_recorded: list[bool] = []
    costs.note_step = lambda *_facts: is_recorded.append(bench.runner.has_recorded)  # type: ignore[method-assign]
    measure_steps(bench.runner, bench.pool, costs, Clock(), 64)
    assert recorder.num_recorded == 1
    assert not any(is_recorded)


def test_a_cpu_records_nothing(tiny_folder: Path) -> None:
    model = load_model(tiny_folder)
    assert graph_setup(model.device, 8, model.context_tokens) is None
