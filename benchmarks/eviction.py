"""What eviction policies cost: processor time of a touch, and of an eviction with the insertion it is for.

    python benchmarks/eviction.py [--policies NAMES] [--blocks NS] [--rounds N] [--chain N] [--json FILE]

Prompts of ``--chain`` blocks are chosen at random and touched from their last block, or new ones come in,
each block in the place of a victim. Figures are medians of the rounds. The slope is that of the logarithm
of the time over that of the number of blocks: 0 where the number does not matter. ``a dictionary`` is what
it costs by itself to look up a random prompt's blocks and to write to them: the machine's memory is slower
the more of it is used.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from math import log
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from kvstore.registry import Kind, Registry
from kvstore.seams import EvictionPolicy
from policies.builtin import register_builtin

DICTIONARY = "a dictionary"
_BLOCKS_A_ROUND = 2048
_REQUEST_S = 0.01


class Cached:
    """A policy with ``num_blocks`` blocks in prompts of ``chain``, which are used and replaced at random."""

    def __init__(self, policy: EvictionPolicy, num_blocks: int, chain: int) -> None:
        self._policy, self._chain = policy, chain
        self._rng = random.Random(num_blocks)  # noqa: S311 - no secrets
        self._now_s = 0.0
        self._prompts = [self._new_prompt() for _ in range(num_blocks // chain)]
        for prompt in self._prompts:
            self._pass()
            for parent, key in zip((b"", *prompt), prompt, strict=False):
                policy.insert(key, parent, self._now_s)

    def touch(self, num_blocks: int) -> float:
        """Touch so many blocks; returns the seconds that one took."""
        prompts = self._rng.choices(self._prompts, k=num_blocks // self._chain)
        return _timed(lambda: self._touch(prompts), num_blocks)

    def replace(self, num_blocks: int) -> float:
        """Let so many blocks go and others come in; returns the seconds that one took."""
        prompts = [self._new_prompt() for _ in range(num_blocks // self._chain)]
        return _timed(lambda: self._replace(prompts), num_blocks)

    def _touch(self, prompts: Iterable[Sequence[bytes]]) -> None:
        touch = self._policy.touch
        for prompt in prompts:
            self._pass()
            for key in reversed(prompt):
                touch(key, self._now_s)

    def _replace(self, prompts: Iterable[Sequence[bytes]]) -> None:
        policy = self._policy
        for prompt in prompts:
            self._pass()
            is_held = frozenset(prompt).__contains__
            for parent, key in zip((b"", *prompt), prompt, strict=False):
                policy.remove(next(policy.victims(is_held)))
                policy.insert(key, parent, self._now_s)

    def _new_prompt(self) -> tuple[bytes, ...]:
        return tuple(self._rng.randbytes(16) for _ in range(self._chain))

    def _pass(self) -> None:
        self._now_s += _REQUEST_S


class Dictionary:
    """As much of a policy as there is to every touch: a look-up and a write."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, list[float]] = {}

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:  # noqa: ARG002 - a policy's signature
        self._blocks[key] = [now_s]

    def touch(self, key: bytes, now_s: float) -> None:
        self._blocks[key][0] = now_s


def main() -> None:
    """Run the benchmark."""
    registry = Registry()
    register_builtin(registry)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", default=",".join(registry.names(Kind.EVICTION)))
    parser.add_argument("--blocks", default="10000,31600,100000,316000,1000000")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--chain", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sizes = [int(size) for size in arguments.blocks.split(",")]
    rows = []
    for name in (DICTIONARY, *arguments.policies.split(",")):
        make = Dictionary if name == DICTIONARY else registry.get(Kind.EVICTION, name)
        rows += measure(name, make, sizes, arguments.chain, arguments.rounds)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def measure(
    name: str, make: Callable[[], Any], sizes: Sequence[int], chain: int, num_rounds: int
) -> list[dict[str, Any]]:
    """Return, and print, what each operation of a policy costs at each number of blocks, and the slope."""
    seconds: dict[str, list[float]] = {}
    for size in sizes:
        cached = Cached(make(), size, chain)
        operations = {"touch": cached.touch, "evict and insert": cached.replace}
        for operation, run in operations.items():
            if name != DICTIONARY or operation == "touch":
                rounds = [run(_BLOCKS_A_ROUND) for _ in range(num_rounds)]
                seconds.setdefault(operation, []).append(median(rounds))
        del cached, operations, run
        gc.collect()
    rows = [
        {
            "policy": name,
            "operation": operation,
            "seconds": dict(zip(map(str, sizes), times, strict=True)),
            "slope": slope(sizes, times) if len(sizes) > 1 else None,
        }
        for operation, times in seconds.items()
    ]
    for row in rows:
        print(_line(row), flush=True)
    return rows


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return by which power of the number of blocks the time grows."""
    return linear_regression([log(size) for size in sizes], [log(each) for each in seconds]).slope


def _line(row: dict[str, Any]) -> str:
    figures = "  ".join(f"{int(size):>9,}: {each * 1e6:5.2f} us" for size, each in row["seconds"].items())
    return f"{row['policy']:<12}  {row['operation']:<16}  {figures}  slope {row['slope'] or 0:.3f}"


def _timed(call: Callable[[], object], num_blocks: int) -> float:
    began_s = time.process_time()
    call()
    return (time.process_time() - began_s) / num_blocks


if __name__ == "__main__":
    main()
