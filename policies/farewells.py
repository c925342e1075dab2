"""Blocks that go before all others, because it is believed that nobody comes back for them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

from kvstore.errors import InvariantError
from kvstore.hints import Hint
from policies.belief import Belief, Claim, claim_of

_HINTS_PER_WITNESS = 8


class _Chain:
    """Blocks of one prompt, each the parent of the one before it, of which ``claim`` was made."""

    __slots__ = ("claim", "keys", "number")

    def __init__(self, number: int, claim: Claim, keys: Sequence[bytes]) -> None:
        self.number = number
        self.claim = claim
        self.keys = OrderedDict[bytes, None].fromkeys(keys)


class Farewells:
    """Hints that were heard, and the chains of blocks that go first for them. Not thread-safe.

    Who has such a chain is its prompt alone: a block's only child is the one before it. When a block is used
    again, or another block follows it, it is left to the policy once more, with all that come before it in
    the prompt. One hint in eight is not followed though it is believed, so that it is noticed when what is
    said is not true any more.
    """

    def __init__(self) -> None:
        self._belief = Belief()
        self._chains: OrderedDict[int, _Chain] = OrderedDict()
        self._chain_of: dict[bytes, _Chain] = {}
        self._followed: set[Claim] = set()
        self._num_chains = 0

    def hear(self, keys: Sequence[bytes], hint: Hint) -> None:
        """Take in what is said of a prompt's own blocks, the last one first; there is one at least."""
        claim = claim_of(hint)
        number = crc32(keys[0])
        is_believed = self._belief.believes(claim)
        if not is_believed and claim in self._followed:
            self._recant(claim)
        self._belief.watch(keys[number // _HINTS_PER_WITNESS % len(keys)], claim, len(keys))
        if not is_believed or number % _HINTS_PER_WITNESS == 0:
            return
        for key in keys:
            self._keep(key)
        self._followed.add(claim)
        self._num_chains += 1
        chain = self._chains[self._num_chains] = _Chain(self._num_chains, claim, keys)
        self._chain_of.update(dict.fromkeys(keys, chain))

    def used(self, key: bytes) -> None:
        """Note that a resident block is used."""
        self._keep(key)
        self._belief.used(key)

    def came(self, key: bytes, parent: bytes) -> None:
        """Note that a block is inserted."""
        self._keep(parent)
        self._belief.came(key)

    def went(self, key: bytes) -> None:
        """Note that a block is removed."""
        chain = self._chain_of.pop(key, None)
        if chain is None:
            self._belief.went(key)
            return
        del chain.keys[key]
        self._drop_if_empty(chain)
        self._belief.went_first(key)

    def __iter__(self) -> Iterator[Iterable[bytes]]:
        """Yield the chains, who was bidden farewell first coming first; each goes from its first block on."""
        for chain in self._chains.values():
            yield chain.keys

    def check(self, parents: Mapping[bytes, bytes]) -> None:
        """Raise ``InvariantError`` unless blocks that go first are resident, and leaves one after the other.

        ``parents`` names the parent of each resident block.
        """
        named = [(key, chain) for chain in self._chains.values() for key in chain.keys]
        if dict(named) != self._chain_of or len(named) != len(self._chain_of):
            raise InvariantError("a block goes first in another chain than its own")
        if not parents.keys() >= self._chain_of.keys():
            raise InvariantError("a block that is not there goes first")
        place = {key: at for at, (key, _) in enumerate(named)}
        for key, parent in parents.items():
            chain = self._chain_of.get(parent)
            if chain and (chain is not self._chain_of.get(key) or place[key] > place[parent]):
                raise InvariantError("a block goes first and its child does not")

    def _keep(self, key: bytes) -> None:
        """Leave a block to the policy again, with those before it in the prompt."""
        chain = self._chain_of.get(key)
        while chain is not None and key in chain.keys:
            del self._chain_of[chain.keys.popitem()[0]]
            self._drop_if_empty(chain)

    def _drop_if_empty(self, chain: _Chain) -> None:
        if not chain.keys:
            del self._chains[chain.number]

    def _recant(self, claim: Claim) -> None:
        """Leave all blocks to the policy that go first for a claim that is not believed any more."""
        self._followed.remove(claim)
        for chain in [chain for chain in self._chains.values() if chain.claim == claim]:
            self._keep(next(iter(chain.keys)))
