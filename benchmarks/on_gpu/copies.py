"""Blocks from host memory to the device and back, beside plain page-locked copies of the same bytes."""

from __future__ import annotations

import torch

from backends.device import DevicePool
from backends.kv_shape import KVShape
from backends.pagelock import cuda_page_locker
from benchmarks.on_gpu.findings import Budget, Findings
from benchmarks.on_gpu.served import Bench
from benchmarks.on_gpu.sizes import BLOCK_TOKENS
from benchmarks.on_gpu.timing import Work, medians
from kvstore.arena import Arena, Slot, slot_stride
from kvstore.clock import Clock
from policies.lru import LeafFirstLRU

_LEAST_SHARE = 0.9
_SLAB_BYTES = 64 << 20


def block_copies(bench: Bench, budget: Budget) -> Findings:  # noqa: ARG001 - it takes seconds
    """Time both directions through the pool's own path, in the same rounds as plain copies."""
    findings, shape = Findings(), bench.size.served
    kv_shape = KVShape(shape.layers, shape.kv_heads, shape.head_dim, BLOCK_TOKENS, torch.bfloat16)
    num_blocks = max(2, bench.size.copied_bytes // kv_shape.block_bytes)
    is_locked = bench.device.type == "cuda"
    budget_bytes = num_blocks * slot_stride(kv_shape.block_bytes) + 2 * _SLAB_BYTES
    arena = Arena(budget_bytes, _SLAB_BYTES, cuda_page_locker() if is_locked else None)
    pool = _pool(kv_shape, num_blocks, bench.device)
    slots = [slot for slot in (arena.allocate(kv_shape.block_bytes) for _ in range(num_blocks)) if slot]
    assert len(slots) == num_blocks, "there is no memory for the blocks"
    on_device = torch.zeros(num_blocks * kv_shape.block_bytes, dtype=torch.uint8, device=bench.device)
    on_host = torch.zeros(on_device.shape, dtype=torch.uint8, pin_memory=is_locked)
    try:
        took_s = medians(bench, _sides(pool, slots, on_device, on_host))
    finally:
        for slot in slots:
            slot.free()
        arena.close()
    rates = {name: on_device.nbytes / each_s for name, each_s in took_s.items()}
    for direction in ("to device", "to host"):
        plain, blocks = rates[f"plain {direction}"], rates[f"blocks {direction}"]
        findings.tell(
            f"copies {direction}", f"{blocks / 1e9:.1f} GB/s of blocks, plain {plain / 1e9:.1f} GB/s"
        )
        findings.mark(f"blocks {direction} over plain copies", blocks / plain, _LEAST_SHARE)
    findings.figures = {"bytes_per_s": rates, "num_blocks": num_blocks}
    return findings


def _sides(
    pool: DevicePool, slots: list[Slot], on_device: torch.Tensor, on_host: torch.Tensor
) -> dict[str, Work]:
    blocks = pool.allocate(len(slots)) or []
    pairs = list(zip(blocks, slots, strict=True))

    def to_device() -> None:
        for block, slot in pairs:
            pool.write_block(block, slot.view)

    def to_host() -> None:
        for block, slot in pairs:
            pool.read_block(block, slot.view)

    return {
        "plain to device": lambda: on_device.copy_(on_host, non_blocking=True),
        "blocks to device": to_device,
        "plain to host": lambda: on_host.copy_(on_device, non_blocking=True),
        "blocks to host": to_host,
    }


def _pool(shape: KVShape, num_blocks: int, device: torch.device) -> DevicePool:
    return DevicePool(
        shape, num_blocks, device, LeafFirstLRU(), lambda _key, _parent: None, lambda _key: None, Clock()
    )
