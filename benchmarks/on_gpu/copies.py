"""Blocks from host memory to the device and back, beside plain page-locked copies of the same bytes."""

from __future__ import annotations

from typing import get_args

import torch

from backends.device import DevicePool
from backends.kv_shape import KVShape, Layout
from backends.pagelock import cuda_page_locker
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from benchmarks.on_gpu.timing import Work, medians
from engine_adapter.engine.attention import AttentionKind
from engine_adapter.engine.attention_choice import choose_attention
from kvstore.arena import Arena, Slot, slot_stride
from kvstore.clock import Clock
from policies.lru import LeafFirstLRU

LAYOUTS: tuple[Layout, ...] = get_args(Layout)

_LEAST_SHARE = 0.9
_SLAB_BYTES = 64 << 20


def block_copies(bench: Bench, budget: Budget) -> Findings:  # noqa: ARG001 - it takes seconds
    """Time both directions in both layouts of a pool, in the same rounds as plain copies.

    The layout that the device's attention wants is the one that the mark is for.
    """
    findings, shape = Findings(), _kv_shape(bench)
    kinds = [AttentionKind()]
    chosen = choose_attention(bench.size.served.heads, shape, shape.dtype, bench.device, kinds).attention
    for layout in LAYOUTS:
        rates = _bytes_per_s(bench, shape, layout)
        findings.figures[layout] = {"bytes_per_s": rates}
        for direction in ("to device", "to host"):
            plain, blocks = rates[f"plain {direction}"], rates[f"blocks {direction}"]
            what = f"blocks {direction}, {layout}"
            findings.tell(what, f"{blocks / 1e9:.1f} GB/s, plain copies {plain / 1e9:.1f} GB/s")
            if layout == chosen.layout:
                findings.mark(f"{what}, over plain copies", blocks / plain, _LEAST_SHARE)
    findings.figures["layout_in_use"] = chosen.layout
    return findings


def _bytes_per_s(bench: Bench, shape: KVShape, layout: Layout) -> dict[str, float]:
    """Return the rates of plain copies and of blocks through the pool's own path, in both directions."""
    num_blocks = max(2, bench.size.copied_bytes // shape.block_bytes)
    is_locked = bench.device.type == "cuda"
    budget_bytes = num_blocks * slot_stride(shape.block_bytes) + 2 * _SLAB_BYTES
    arena = Arena(budget_bytes, _SLAB_BYTES, cuda_page_locker() if is_locked else None)
    slots = [slot for slot in (arena.allocate(shape.block_bytes) for _ in range(num_blocks)) if slot]
    assert len(slots) == num_blocks, "there is no memory for the blocks"
    on_device = torch.zeros(num_blocks * shape.block_bytes, dtype=torch.uint8, device=bench.device)
    on_host = torch.zeros(on_device.shape, dtype=torch.uint8, pin_memory=is_locked)
    try:
        took_s = medians(bench, _sides(_pool(bench, shape, num_blocks, layout), slots, on_device, on_host))
    finally:
        for slot in slots:
            slot.free()
        arena.close()
    return {name: on_device.nbytes / each_s for name, each_s in took_s.items()}


def _sides(
    pool: DevicePool, slots: list[Slot], on_device: torch.Tensor, on_host: torch.Tensor
) -> dict[str, Work]:
    pairs = list(zip(pool.allocate(len(slots)) or [], slots, strict=True))

    def to_device() -> None:
        copies = [pool.write_block(block, slot.view) for block, slot in pairs]
        copies[-1].wait()

    def to_host() -> None:
        copies = [pool.read_block(block, slot.view) for block, slot in pairs]
        copies[-1].wait()

    return {
        "plain to device": lambda: on_device.copy_(on_host, non_blocking=True),
        "blocks to device": to_device,
        "plain to host": lambda: on_host.copy_(on_device, non_blocking=True),
        "blocks to host": to_host,
    }


def _kv_shape(bench: Bench) -> KVShape:
    shape = bench.size.served
    return KVShape(shape.layers, shape.kv_heads, shape.head_dim, BLOCK_TOKENS, torch.bfloat16)


def _pool(bench: Bench, shape: KVShape, num_blocks: int, layout: Layout) -> DevicePool:
    def ignore(*_facts: object) -> None:
        """Nobody wants to know."""

    return DevicePool(shape, num_blocks, bench.device, LeafFirstLRU(), ignore, ignore, Clock(), layout)
