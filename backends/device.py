"""The paged device pool: keys and values of running sequences, and of prefixes kept for later.

Every block is in exactly one of four states::

    free ──allocate──> private ──publish──> shared ──last release──> cached
      ^                   │                   ^                        │ │
      └──────release──────┘                   └────────acquire─────────┘ │
      └──────────────────────────evict──────────────────────────────────┘

A private block belongs to one sequence, which may write it. A published one (shared or cached) is
found by its key and never written again.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import torch

from backends.block_memory import BlockMemory
from backends.copies import Copies, Copy, copies_for
from backends.kv_shape import KVShape, Layout
from kvstore.clock import Clock
from kvstore.errors import InvariantError
from kvstore.hints import Hint
from kvstore.namespace import Namespace
from kvstore.seams import EvictionPolicy, Hearing
from kvstore.spared import Spared

_FREE_RUN = re.compile(rb"\x01+")
# A new sequence starts this far behind the one before it, which can then grow in place.
_GROWTH_BLOCKS = 16


class DevicePool:
    """Blocks of keys and values on one device, shared by key, evicted by a policy.

    ``keys_and_values`` and ``value_scales`` lie as ``BlockMemory`` tells. ``on_added`` and ``on_removed``
    hear of what is published. Not thread-safe: the engine's thread alone uses it.
    """

    def __init__(
        self,
        shape: KVShape,
        num_blocks: int,
        device: torch.device | str,
        policy: EvictionPolicy,
        on_added: Callable[[bytes, bytes, Namespace | None], None],
        on_removed: Callable[[bytes], None],
        clock: Clock,
        layout: Layout = "layer-first",
        copies: Copies | None = None,
    ) -> None:
        """Without ``copies`` blocks are copied as ``copies_for`` has it for the device."""
        self.shape = shape
        self.num_blocks = num_blocks
        device = torch.device(device)
        self._memory = BlockMemory(shape, num_blocks, device, layout, copies or copies_for(device, clock))
        self.keys_and_values = self._memory.keys_and_values
        self.value_scales = self._memory.value_scales
        self.pages_per_block = self._memory.pages_per_block
        self.layers = self._memory.layers()
        self._policy = policy
        self._on_added = on_added
        self._on_removed = on_removed
        self._clock = clock
        self._is_free = bytearray(b"\x01" * num_blocks)
        self._references = [0] * num_blocks
        self._block_of: dict[bytes, int] = {}
        self._key_of: dict[int, bytes] = {}
        self._parent_of: dict[bytes, bytes] = {}
        # Per key: 1 if its block has references, and 1 for each resident child that is held itself.
        self._holds: Counter[bytes] = Counter()
        self._num_free = num_blocks
        self._num_held = 0
        self.spared = Spared()
        """Blocks that go after all others; see ``Foresight.spare``."""

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can give now: free ones and those that may be evicted."""
        return self._num_free + len(self._block_of) - self._num_held

    @property
    def num_cached(self) -> int:
        """Published blocks that no sequence uses."""
        return sum(1 for block in self._key_of if not self._references[block])

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self._num_free

    def set_aside(self) -> int:
        """Take the last block out of the pool, for good, and return it; only while it is free."""
        if not self._is_free[-1]:
            raise InvariantError(f"block {self.num_blocks - 1} is in use and cannot be set aside")
        self.num_blocks -= 1
        self._num_free -= 1
        self._is_free.pop()
        self._references.pop()
        return self.num_blocks

    def acquire(self, key: bytes) -> int | None:
        """Return the published block of ``key``, with one more reference, or ``None``."""
        block = self._block_of.get(key)
        if block is None:
            return None
        self._references[block] += 1
        if self._references[block] == 1:
            self._hold(key)
        return block

    def allocate(self, num: int, after: int | None = None) -> list[int] | None:
        """Return ``num`` private blocks, or ``None`` (and nothing changes) if there are not so many.

        They are one run right behind block ``after`` where possible, else one run, else pieces.
        Cached blocks are evicted only when the free ones do not suffice.
        """
        if num > self.num_available:
            return None
        if num > self._num_free:
            self._evict(num - self._num_free)
        blocks = self._find_free(num, after)
        for block in blocks:
            self._is_free[block] = 0
            self._references[block] = 1
        self._num_free -= num
        return blocks

    def publish(self, block: int, key: bytes, parent: bytes, namespace: Namespace | None = None) -> bool:
        """Offer a private block, complete and written, under ``key``; ``namespace``: by whose rules it lives.

        Returns ``False`` when another block has the key: this one then stays private.
        """
        self.require_private((block,))
        if key in self._block_of:
            return False
        self._block_of[key], self._key_of[block], self._parent_of[key] = block, key, parent
        self._holds[key] += 1
        self._num_held += 1
        self._hold(parent)
        self._on_added(key, parent, namespace)
        return True

    def hear(self, keys: Sequence[bytes], hint: Hint) -> None:
        """Pass a hint about a prompt on to the policy, if it takes hints; see ``Foresight.hint``."""
        if isinstance(self._policy, Hearing):
            self._policy.hear(keys, hint, self._clock.monotonic_s())

    def discard(self, keys: Iterable[bytes]) -> None:
        """Evict the published blocks of these ``keys``, but for those that are in use."""
        self._remove([key for key in keys if key in self._block_of and key not in self._holds])

    def release(self, blocks: Iterable[int], *, is_used: bool = True) -> None:
        """Give back one reference of each block: private ones become free, others may be cached.

        Now, and once, the policy is told that a block was used; not if ``is_used`` is false.
        """
        now_s = self._clock.monotonic_s()
        for block in blocks:
            if self._references[block] < 1:
                raise InvariantError(f"block {block} is released and has no reference")
            self._references[block] -= 1
            key = self._key_of.get(block)
            if key is None:
                self._set_free(block)
                continue
            is_ordered, is_last = key in self._policy, not self._references[block]
            if is_ordered and is_used:
                self._policy.touch(key, now_s)
            elif not is_ordered and (is_used or is_last):
                self._policy.insert(key, self._parent_of[key], now_s)
            if is_last:
                self._unhold(key)

    def require_private(self, blocks: Iterable[int]) -> None:
        """Raise ``InvariantError`` unless all ``blocks`` are private or set aside, and may be written."""
        for block in blocks:
            if block < self.num_blocks and (self._references[block] != 1 or block in self._key_of):
                raise InvariantError(f"block {block} is not private and must not be written")

    def copy_block(self, source: int, target: int) -> None:
        """Copy block ``source`` into the private block ``target``, in the order of what is computed."""
        self.require_private((target,))
        self._memory.copy(source, target)

    def read_block(self, block: int, out: memoryview) -> Copy:
        """Begin to copy ``block`` into ``out`` (``block_bytes``, writable) as it lies at rest.

        Keep a reference to the block, and ``out``, until the copy is complete.
        """
        return self._memory.read(block, out)

    def write_block(self, block: int, data: memoryview) -> Copy:
        """Begin to copy ``data``, as it lies at rest, into a private block.

        ``data`` (``block_bytes``, a writable buffer) is only read; keep it until the copy is complete. The
        block may be published, released and given to another sequence before that: see ``order_after_loads``.
        """
        self.require_private((block,))
        return self._memory.write(block, data)

    def order_after_loads(self, blocks: Iterable[int]) -> None:
        """Let what is computed from now on begin after all copies into ``blocks``; never blocks.

        Call it with all blocks that a step reads or writes, whoever they were loaded for.
        """
        self._memory.order_after_loads(blocks)

    def clear(self) -> None:
        """Evict every published block that may be evicted."""
        self._evict(len(self._block_of) - self._num_held)

    def check(self) -> None:
        """Raise ``InvariantError`` unless free, private, shared and cached blocks add up."""
        self._policy.check()
        used = [block for block, number in enumerate(self._references) if number]
        private = [block for block in used if block not in self._key_of]
        ordered = {key for key in self._block_of if key in self._policy}
        total = self._num_free + len(used) + self.num_cached
        laws = {
            "free + private + shared + cached = all": total == self.num_blocks,
            "the free map counts the free blocks": sum(self._is_free) == self._num_free,
            "no free block is in use": not any(self._is_free[block] for block in (*used, *self._key_of)),
            "a private block has one reference": all(self._references[block] == 1 for block in private),
            "one key, one block": {key: block for block, key in self._key_of.items()} == self._block_of,
            "the policy orders what is published and was given back": len(self._policy) == len(ordered)
            and all(self._references[self._block_of[key]] for key in self._block_of.keys() - ordered),
            "holds follow references": self._holds == self._expected_holds(),
            "held keys are counted": self._num_held == sum(key in self._holds for key in self._block_of),
        }
        if broken := [law for law, holds in laws.items() if not holds]:
            raise InvariantError(f"device pool: {'; '.join(broken)}")

    def _find_free(self, num: int, after: int | None) -> list[int]:
        run = b"\x01" * num
        if after is not None and self._is_free.startswith(run, after + 1):
            return list(range(after + 1, after + 1 + num))
        roomy = self._is_free.find(b"\x01" * (_GROWTH_BLOCKS + num))
        start = self._is_free.find(run) if roomy < 0 else roomy + _GROWTH_BLOCKS
        if start >= 0:
            return list(range(start, start + num))
        return self._find_pieces(num, after)

    def _find_pieces(self, num: int, after: int | None) -> list[int]:
        runs = [match.span() for match in _FREE_RUN.finditer(self._is_free)]
        runs.sort(key=lambda run: (after is None or run[0] != after + 1, run[0] - run[1]))
        return list(islice((block for run in runs for block in range(*run)), num))

    def _evict(self, num: int) -> None:
        is_held = self._holds.__contains__
        if self.spared:
            others = list(islice(self._policy.victims(self.spared.held_as_well(is_held)), num))
            self._remove(others)
            num -= len(others)
        self._remove(list(islice(self._policy.victims(is_held), num)))

    def _remove(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._policy.remove(key)
            block = self._block_of.pop(key)
            del self._key_of[block], self._parent_of[key]
            self._set_free(block)
            self._on_removed(key)

    def _set_free(self, block: int) -> None:
        self._is_free[block] = 1
        self._num_free += 1

    def _hold(self, key: bytes) -> None:
        """Count a hold on ``key``; the first one holds its parent too, so that it outlives its child."""
        while key:
            self._holds[key] += 1
            if self._holds[key] > 1 or key not in self._block_of:
                return
            self._num_held += 1
            key = self._parent_of[key]

    def _unhold(self, key: bytes) -> None:
        while key:
            self._holds[key] -= 1
            if self._holds[key]:
                return
            del self._holds[key]
            if key not in self._block_of:
                return
            self._num_held -= 1
            key = self._parent_of[key]

    def _expected_holds(self) -> Counter[bytes]:
        expected = Counter(key for block, key in self._key_of.items() if self._references[block])
        for key in self._block_of:
            if key in self._holds and (parent := self._parent_of[key]):
                expected[parent] += 1
        return expected
