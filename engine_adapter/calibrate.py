"""Measures what steps and loads cost before the first request, where nothing is known from an earlier run."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Thread

from backends.device import DevicePool
from engine_adapter.engine.costs import CostBook
from engine_adapter.engine.runner import Chunk, ModelRunner
from kvstore.arena import Arena, Slot
from kvstore.clock import Clock
from kvstore.errors import one_line
from kvstore.frame import HEADER_BYTES, Expiry, Header, checksum
from kvstore.keys import KEY_BYTES
from kvstore.seams import Backend, Streaming, Want
from policies.cost_model import Work
from policies.lines import Arrival

_log = logging.getLogger(__name__)

_STEPS_BUDGET_S = 2.0
_TIERS_BUDGET_S = 0.8
_MOST_BLOCKS = 8
_NUM_READERS = 4
_NUM_COPIES = 5
_LEFT_BEHIND_MS = 60_000
# Tokens computed and the position they begin at; the cheapest first, for the time may not suffice for all.
_STEPS = ((16, 0), (128, 0), (1, 1024), (128, 1024), (512, 0), (512, 1024))


def measure_steps(
    runner: ModelRunner, pool: DevicePool, costs: CostBook, clock: Clock, most_tokens: int
) -> None:
    """Time steps of several kinds on blocks of ``pool``, each twice; ends soon after two seconds.

    The first of each kind only warms up: memory is allocated and kernels are chosen in it. The very
    first may take longer than all others, since weights are read from the disk in it, and is not counted.
    The last for which there is time counts either way: one kind of step alone tells no cost of a token.
    """
    if blocks := pool.allocate(1):
        runner.forward([Chunk([0], 0, blocks, num_logits=1)])
        pool.release(blocks)
    ends_s = clock.monotonic_s() + _STEPS_BUDGET_S
    step = pool.shape.block_tokens
    for wished_tokens, wished_start in _STEPS:
        start = min(wished_start, max(0, pool.num_available * step - wished_tokens))
        num_tokens = min(wished_tokens, most_tokens, pool.num_available * step - start)
        blocks = pool.allocate(-(-(start + num_tokens) // step))
        if blocks is None:
            return
        try:
            for is_warm in (False, True):
                began_s = clock.monotonic_s()
                runner.forward([Chunk([0] * num_tokens, start, blocks, num_logits=1)])
                took_s = clock.monotonic_s() - began_s
                is_last = clock.monotonic_s() + took_s > ends_s
                if is_warm or is_last:
                    costs.note_step(Work.prefill(start, start + num_tokens), took_s, clock.monotonic_s())
                if is_last:
                    return
        finally:
            pool.release(blocks)


def measure_copy(pool: DevicePool, arena: Arena, costs: CostBook, clock: Clock) -> None:
    """Time copies of one block from our own memory to the device.

    The first, which touches new memory, is left out.
    """
    slot, blocks = arena.allocate(pool.shape.block_bytes), pool.allocate(1)
    if slot is not None and blocks is not None:
        pool.write_block(blocks[0], slot.view).wait()
        for _ in range(_NUM_COPIES):
            copy = pool.write_block(blocks[0], slot.view)
            copy.wait()
            costs.note_copy(copy.took_s, clock.monotonic_s())
    if slot is not None:
        slot.free()
    pool.release(blocks or [])


def measure_tiers(
    backends: Mapping[str, Backend], arena: Arena, block_bytes: int, costs: CostBook, clock: Clock
) -> None:
    """Write a few blocks to each tier and read them back, all tiers at once; ends within a second.

    What a tier has not answered by then stays unmeasured. The blocks are removed; should that fail,
    they end by themselves where the medium knows of time.
    """
    arrived: dict[str, list[Arrival]] = {tier: [] for tier in backends}
    threads = [
        Thread(target=_measure, args=(tier, backend, arena, block_bytes, arrived[tier], clock), daemon=True)
        for tier, backend in backends.items()
    ]
    ends_s = clock.monotonic_s() + _TIERS_BUDGET_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, ends_s - clock.monotonic_s()))
    for tier, arrivals in arrived.items():
        costs.learn_arrivals(tier, list(arrivals))


def _measure(
    tier: str, backend: Backend, arena: Arena, block_bytes: int, arrived: list[Arrival], clock: Clock
) -> None:
    """Measure one block alone; if that was quick, several at once, and one more, which ends their row."""
    ends_s = clock.monotonic_s() + _TIERS_BUDGET_S
    try:
        began_s = clock.monotonic_s()
        arrived += _round(backend, arena, block_bytes, 1, clock)
        num = int((ends_s - clock.monotonic_s()) / max(1e-3, clock.monotonic_s() - began_s)) - 1
        if num > _NUM_READERS:
            arrived += _round(backend, arena, block_bytes, min(num, _MOST_BLOCKS), clock)
            arrived += _round(backend, arena, block_bytes, 1, clock)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; the tier is tried when it is used
        _log.warning("tier %s does not work yet: %s", tier, one_line(error))


def _round(backend: Backend, arena: Arena, block_bytes: int, num: int, clock: Clock) -> list[Arrival]:
    slots = [slot for slot in (arena.allocate(block_bytes) for _ in range(num)) if slot is not None]
    keys = [secrets.token_bytes(KEY_BYTES) for _ in slots]
    try:
        for key, slot in zip(keys, slots, strict=True):
            backend.put(key, memoryview(_header(key, slot, clock).pack()), slot.view)
        wants = [
            Want(key, memoryview(bytearray(HEADER_BYTES)), slot.view)
            for key, slot in zip(keys, slots, strict=True)
        ]
        asked_s = clock.monotonic_s()
        return [Arrival(asked_s, arrived_s, block_bytes) for arrived_s in _read(backend, wants, clock)]
    finally:
        for key in keys:
            with suppress(Exception):
                backend.delete(key)
        for slot in slots:
            slot.free()


def _read(backend: Backend, wants: Sequence[Want], clock: Clock) -> Iterator[float]:
    """Yield when each block has arrived."""
    if isinstance(backend, Streaming):
        for nbytes in backend.get_each(wants):
            if nbytes is not None:
                yield clock.monotonic_s()
        return

    def read(want: Want) -> float | None:
        return clock.monotonic_s() if backend.get_into(*want) is not None else None

    with ThreadPoolExecutor(_NUM_READERS) as readers:
        yield from (arrived_s for arrived_s in readers.map(read, wants) if arrived_s is not None)


def _header(key: bytes, slot: Slot, clock: Clock) -> Header:
    now_ms, size = clock.wall_ms(), len(slot.view)
    expiry = Expiry(hard_ms=now_ms + _LEFT_BEHIND_MS)
    return Header(b"calibration-only", key, b"", 1, size, size, now_ms, expiry, checksum(slot.view))
