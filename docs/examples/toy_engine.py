"""A toy engine that keeps its prefixes in a store: all the calls that an engine needs.

Its "model" adds numbers: the state after a token is the sum of all tokens so far, and a block's bytes are
the states of its tokens. Run it twice against a server, or as it is: ``python toy_engine.py [ADDRESS]``.
"""

from __future__ import annotations

import struct
import sys

from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.connect import connect
from kvstore.interface import BlockStore
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

BLOCK_TOKENS = 4
BLOCK_BYTES = 8 * BLOCK_TOKENS
WAIT_S = 1.0


class ToyEngine:
    """Computes states of prompts, from where the store's blocks end."""

    def __init__(self, store: BlockStore) -> None:
        self.store = store
        self.num_computed = 0
        # Whatever makes equal tokens give other states belongs here: weights, configuration, dtypes, form.
        described = Namespace("sum of tokens", "{}", "int64", "int64", BLOCK_TOKENS, label="toy")
        self.namespace = store.own_namespace(described)

    def prefill(self, tokens: list[int]) -> int:
        """Return the state after a prompt."""
        keys = chain_keys(self.namespace.digest, tokens, BLOCK_TOKENS)
        states = self._load(keys)
        num_loaded = len(states)
        for token in tokens[num_loaded:]:
            states.append((states[-1] if states else 0) + token)
        self.num_computed += len(tokens) - num_loaded
        for index in range(num_loaded // BLOCK_TOKENS, len(keys)):
            self._store(keys, index, states[index * BLOCK_TOKENS : (index + 1) * BLOCK_TOKENS])
        return states[-1]

    def _load(self, keys: list[bytes]) -> list[int]:
        """Return the states that the store has, from the first token on."""
        states: list[int] = []
        deadline_s = self.store.now_s() + WAIT_S
        inquiry = self.store.inquire(keys, deadline_s, block_bytes=BLOCK_BYTES)  # shared media, if any
        if inquiry is not None and not inquiry.wait(WAIT_S):
            inquiry.abandon()
        hit = self.store.lookup(keys)  # leased until released, or until the lease's deadline
        try:
            head = next((n for n, tier in enumerate(hit.tiers) if tier is None), len(hit.tiers))
            tickets = [self.store.load(hit, index, deadline_s) for index in range(head)]
            for number, ticket in enumerate(tickets):
                block = ticket.take() if ticket.wait(WAIT_S) else None
                if block is None:  # a promise that was not kept is a miss: compute the rest
                    for late in tickets[number:]:
                        late.abandon()
                    break
                states += struct.unpack(f"<{BLOCK_TOKENS}q", block.data)
                block.release()
        finally:
            hit.release()
        return states

    def _store(self, keys: list[bytes], index: int, states: list[int]) -> None:
        parent = keys[index - 1] if index else b""
        memory = self.store.reserve(
            self.namespace, keys[index], parent, BLOCK_BYTES, first_token=index * BLOCK_TOKENS
        )
        if memory is not None:  # it is not there yet, and wanted
            memory.view[:] = struct.pack(f"<{BLOCK_TOKENS}q", *states)
            memory.commit()


def store_here() -> TieredStore:
    """Return a store in memory of this process."""
    arena = Arena(1 << 20)
    host = TierConfig("host", 1 << 19)
    return TieredStore([TierSpec(host, HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)], arena)


if __name__ == "__main__":
    engine = ToyEngine(connect(sys.argv[1]) if len(sys.argv) > 1 else store_here())
    for prompt in (list(range(20)), [*range(20), 7, 7]):
        state, computed = engine.prefill(prompt), engine.num_computed
        sys.stdout.write(f"{len(prompt)} tokens: state {state}, {computed} tokens computed so far\n")
    engine.store.close()
