"""Tokens of prompts that were served, kept so that what was stored of them can be computed again."""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from kvstore.keys import KEY_BYTES
from kvstore.namespace import Namespace

_OVERHEAD_BYTES = 512


@dataclass(eq=False, slots=True)
class Remembered:
    """One prompt with its answer, as far as it is whole blocks. Neither tokens nor keys are ever shown."""

    namespace: Namespace
    lora: str | None
    tokens: array[int] = field(repr=False)
    packed_keys: bytes = field(repr=False)

    @property
    def keys(self) -> list[bytes]:
        """The keys of its blocks."""
        return [key for part in self.parts() for key in part]

    def parts(self) -> Iterator[list[bytes]]:
        """Yield them, some at a time."""
        packed, part_bytes = self.packed_keys, 16 * KEY_BYTES
        for start in range(0, len(packed), part_bytes):
            end = min(start + part_bytes, len(packed))
            yield [packed[at : at + KEY_BYTES] for at in range(start, end, KEY_BYTES)]

    @property
    def last_key(self) -> bytes:
        """The key of its last block, which names all of it."""
        return self.packed_keys[-KEY_BYTES:]

    @property
    def tenant(self) -> str:
        """The digest of whose it is; empty: nobody's in particular."""
        return self.namespace.tenant

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return _OVERHEAD_BYTES + sys.getsizeof(self.tokens) + len(self.packed_keys)


class PromptMemory:
    """The prompts served last, in ``max_bytes``; the tenant with the most makes room. In this process alone.

    A prompt that goes on from a remembered one takes its place. Used by the engine's thread alone, but for
    ``num_prompts`` and ``nbytes``.
    """

    def __init__(self, max_bytes: int, random: Random | None = None) -> None:
        self._max_bytes = max_bytes
        self._random = random or Random()  # noqa: S311 - it draws samples
        self._prompts: dict[bytes, Remembered] = {}  # by last key; the oldest first
        self._round: list[Remembered] = []
        self._bytes_of = Counter[str]()
        self.nbytes = 0

    @property
    def num_prompts(self) -> int:
        """How many there are."""
        return len(self._prompts)

    def add(
        self, namespace: Namespace, lora: str | None, tokens: Sequence[int], keys: Sequence[bytes]
    ) -> None:
        """Remember ``tokens``, whole blocks with these keys, unless that would take half of all memory."""
        new = Remembered(namespace, lora, array("I", tokens), b"".join(keys))
        if not keys or 2 * new.nbytes > self._max_bytes:
            return
        for key in keys:
            if (known := self._prompts.get(key)) is not None:
                self.forget(known)
        self._prompts[new.last_key] = new
        self._count(new, 1)
        while self.nbytes > self._max_bytes:
            self.forget(self._oldest_of(max(self._bytes_of, key=self._bytes_of.__getitem__)))

    def __contains__(self, prompt: Remembered) -> bool:
        return self._prompts.get(prompt.last_key) is prompt

    def sample(self, num: int) -> list[Remembered]:
        """Return up to ``num`` prompts, drawn at random."""
        return self._random.sample(list(self._prompts.values()), min(num, len(self._prompts)))

    def forget(self, prompt: Remembered) -> None:
        """Forget a prompt."""
        if prompt in self:
            del self._prompts[prompt.last_key]
            self._count(prompt, -1)

    def clear(self) -> None:
        """Forget all of them."""
        self._prompts.clear()
        self._round.clear()
        self._bytes_of.clear()
        self.nbytes = 0

    def forget_some(self, num: int, is_gone: Callable[[Remembered], bool]) -> None:
        """Look at prompts in turn, and forget those that are gone, until ``num`` were found that are not."""
        num = min(num, len(self._prompts))
        while num and self._prompts:
            self._round = self._round or list(self._prompts.values())
            if is_gone(prompt := self._round.pop()):
                self.forget(prompt)
            else:
                num -= 1

    def _oldest_of(self, tenant: str) -> Remembered:
        return next(prompt for prompt in self._prompts.values() if prompt.tenant == tenant)

    def _count(self, prompt: Remembered, sign: int) -> None:
        self.nbytes += sign * prompt.nbytes
        self._bytes_of[prompt.tenant] += sign * prompt.nbytes
        if not self._bytes_of[prompt.tenant]:
            del self._bytes_of[prompt.tenant]
