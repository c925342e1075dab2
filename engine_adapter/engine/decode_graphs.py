"""Steps that only decode, recorded on the device once and replayed: nothing is launched layer by layer.

A graph is for one number of sequences. A step of fewer runs in the next larger one, whose padding writes to
a page of its own and attends to that. What a step computes is written into the graph's memory before it is
replayed, and its logits are read from there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from transformers import PreTrainedModel

from engine_adapter.engine.attention import DecodePlan, PagedCache, PlansDecodes, Span
from engine_adapter.engine.kv_forms import PoolLayer
from kvstore.errors import one_line

_log = logging.getLogger(__name__)

_SMALL_SIZES = (1, 2, 4)
_SIZES_APART = 8
# Of the largest logit: above what another order of the same sums gives, below what another key does.
_TOLERANCE = 0.02

Run = Callable[[], torch.Tensor]
Record = Callable[[Run], Run]
"""Calls what it is given once and returns what does the same over the same memory; may raise anything."""


@dataclass(frozen=True, slots=True)
class GraphSetup:
    """How decode steps are recorded; ``new_recorder`` begins anew, with no memory of earlier graphs."""

    new_recorder: Callable[[], Record]
    max_sequences: int
    context_tokens: int


def graph_setup(device: torch.device, max_sequences: int, context_tokens: int) -> GraphSetup | None:
    """Return how decode steps are recorded on ``device``, ``None`` where they cannot be."""
    if device.type != "cuda":
        return None
    return GraphSetup(partial(CudaRecorder, device), max_sequences, context_tokens)


def graph_sizes(max_sequences: int) -> list[int]:
    """Return the numbers of sequences that have graphs: 1, 2, 4, 8, 16, 24 and so on, up to the most."""
    sizes = [*_SMALL_SIZES, *range(_SIZES_APART, max_sequences, _SIZES_APART)]
    return [*(size for size in sizes if size < max_sequences), max_sequences]


class DecodeGraphs:
    """Computes decode steps by graphs, each recorded when a step first needs it.

    That step takes about three times as long, once for each size; recording all of them at the start would
    take longer there, and memory for sizes that never come. If recording fails, or a graph gives other logits
    than the same step did before, that is logged and no graph is used any more.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[PoolLayer],
        attention: PlansDecodes,
        block_tokens: int,
        scratch_page: int,
        setup: GraphSetup,
    ) -> None:
        """Nobody else may use ``scratch_page``."""
        self.has_recorded = False
        self._model = model
        self._layers = layers
        self._attention = attention
        self._block_tokens = block_tokens
        self._scratch_page = scratch_page
        self._setup = setup
        self._sizes = graph_sizes(setup.max_sequences)
        self._most_pages = -(-setup.context_tokens // block_tokens)
        self._device = model.device
        self._is_broken = False
        self.forget()

    def forget(self) -> None:
        """Drop all graphs: the model's weights may lie elsewhere now."""
        self._graphs: dict[int, _Graph] = {}
        self._record = self._setup.new_recorder()

    def logits(
        self, spans: Sequence[Span], tokens: Sequence[int], slots: Sequence[int]
    ) -> torch.Tensor | None:
        """Compute a step of one token of each sequence, which is written to its slot.

        Returns fp32 logits, ``[len(spans), vocab_size]``, or ``None``, and then the step is to be computed
        otherwise. ``has_recorded`` tells whether this step made a graph and took longer for it.
        """
        self.has_recorded = False
        size = next((size for size in self._sizes if size >= len(spans)), None)
        longest = max(len(span.blocks) for span in spans)
        if self._is_broken or size is None or longest > self._most_pages:
            return None
        try:
            if size not in self._graphs:
                self._graphs[size] = self._recorded(size, spans, tokens, slots)
                self.has_recorded = True
            graph = self._graphs[size]
            self._fill(graph, spans, tokens, slots)
        except Exception as error:  # noqa: BLE001 - a model or a driver may raise anything
            _log.warning("decode steps are not recorded: %s", one_line(error))
            self._is_broken, self.has_recorded = True, True
            self.forget()
            return None
        return graph.replay()[: len(spans)].to(torch.float32, copy=True)

    def _recorded(
        self, size: int, spans: Sequence[Span], tokens: Sequence[int], slots: Sequence[int]
    ) -> _Graph:
        """Return a graph that was tried on this step."""
        numbers = torch.zeros(3, size, dtype=torch.int64, device=self._device)
        plan = self._attention.decode_plan(size, self._most_pages, self._block_tokens, self._device)
        run = partial(self._run, numbers, plan)
        graph = _Graph(numbers, plan, run)
        self._fill(graph, spans, tokens, slots)
        expected = run()[: len(spans)].clone()
        graph = replace(graph, replay=self._record(run))
        most = float(expected.abs().nan_to_num().max())
        torch.testing.assert_close(
            graph.replay()[: len(spans)], expected, rtol=0, atol=_TOLERANCE * most, equal_nan=True
        )
        return graph

    def _fill(
        self, graph: _Graph, spans: Sequence[Span], tokens: Sequence[int], slots: Sequence[int]
    ) -> None:
        size = graph.numbers.shape[1]
        padding = range(len(spans), size)
        scratch_slot = self._scratch_page * self._block_tokens
        rows = (
            [*tokens, *(0 for _ in padding)],
            [*(span.start for span in spans), *(0 for _ in padding)],
            [*slots, *(scratch_slot for _ in padding)],
        )
        graph.numbers.copy_(torch.tensor(rows))
        graph.plan.fill([*spans, *(Span(row, 0, 1, (self._scratch_page,)) for row in padding)])

    def _run(self, numbers: torch.Tensor, plan: DecodePlan) -> torch.Tensor:
        output = self._model(
            input_ids=numbers[:1],
            position_ids=numbers[1:2],
            cache=PagedCache(self._layers, numbers[2]),
            use_cache=True,
            attend=plan,
        )
        logits: torch.Tensor = output.logits[0]
        return logits


@dataclass(frozen=True, slots=True)
class _Graph:
    """``numbers`` are the rows' tokens, positions and slots, int64 ``[3, sequences]``."""

    numbers: torch.Tensor
    plan: DecodePlan
    replay: Run


class CudaRecorder:
    """Records CUDA graphs that share their memory, and so are replayed one after another."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # theirs

    def __call__(self, run: Run) -> Run:
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            # Other threads may lock memory and the like meanwhile: that concerns them alone.
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ),
            ):
                logits = run()
        finally:
            torch.cuda.set_stream(stream)  # a recording that failed leaves its own

        def replay() -> torch.Tensor:
            graph.replay()
            return logits

        return replay
