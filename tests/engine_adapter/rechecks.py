"""What tests of the audit in idle time stand on: tiers with wrong blocks, and steps that are watched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from backends.faulty import Action, Call, Fault, Faulty
from backends.host import HostBackend
from engine_adapter.engine.audit import Audit
from engine_adapter.engine.runner import Chunk
from kvstore.arena import Arena
from kvstore.clock import Clock
from kvstore.frame import Header, checksum
from kvstore.tier import TierSpec
from tests.engine_adapter.rig import (
    BLOCK_TOKENS,
    SLOT_BYTES,
    Rig,
    greedy,
    host_tier,
    prompt_of,
    tier,
)
from tests.eventually import eventually

NUM_TOKENS = 75
NUM_BLOCKS = NUM_TOKENS // BLOCK_TOKENS
PROMPT = prompt_of(NUM_TOKENS, 1)
QUICK = Clock(lambda: 20 * time.monotonic())
"""For which a quiet moment is soon over."""


def host_and_disk(*script: Fault) -> Callable[[Arena], list[TierSpec]]:
    return lambda arena: [
        host_tier(arena, 256 * SLOT_BYTES),
        tier(Faulty(HostBackend(Arena(2**24)), script), "disk"),
    ]


def replaced(wrong: dict[bytes, bytes]) -> Action:
    """Read these blocks as if they had been stored so: other numbers under a checksum that is right."""

    def action(call: Call) -> int | None:
        nbytes = call.proceed()
        if nbytes is not None and (data := wrong.get(call.key)) is not None:
            facts = vars_of(Header.unpack(bytes(call.header)))
            call.payload[:] = data
            call.header[:] = Header(**facts | {"checksum": checksum(data)}).pack()
        return nbytes

    return action


def vars_of(header: Header) -> dict[str, Any]:
    return {name: getattr(header, name) for name in Header.__dataclass_fields__}


def served(rig: Rig, prompt: Sequence[int] = PROMPT, **options: Any) -> None:
    """Serve a prompt whose blocks are then in every tier."""
    rig.engine.generate(greedy(prompt, 1, **options))
    assert rig.engine.flush(10)


def facts(rig: Rig) -> Audit:
    return rig.engine.rechecker.facts()


def compared(rig: Rig, num: int) -> Audit:
    """Wait until so many copies were compared."""
    eventually(lambda: facts(rig).num_compared >= num)
    return facts(rig)


def bytes_of(rig: Rig, prompt: Sequence[int], index: int) -> bytes:
    data = memoryview(bytearray(rig.model.kv_shape.block_bytes))
    assert rig.store.copies.read_into(rig.keys(prompt)[index], "host", data).result(10)
    return bytes(data)


def watched_steps(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, at_third: Callable[[], object] = lambda: None
) -> list[list[int]]:
    """Return a list to which each step adds the tokens it computes, of requests and of the audit."""
    runner, steps = rig.engine._runner, list[list[int]]()
    forward = runner.forward

    def watch(chunks: Sequence[Chunk]) -> torch.Tensor:
        steps.append([token for chunk in chunks for token in chunk.tokens])
        if len(steps) == 3:
            at_third()
        return forward(chunks)

    monkeypatch.setattr(runner, "forward", watch)
    return steps
