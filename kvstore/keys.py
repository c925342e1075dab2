"""Chained block keys: a key names a whole prefix, not only its own tokens.

``key[i] = blake2b(parent key ++ tokens of block i, keyed with the namespace digest)``, 16 bytes.
Tokens are hashed as little-endian unsigned 32-bit integers. Equal tokens after different
prefixes, or in different namespaces, therefore never share a key.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16
_TOKEN_BYTES = 4


def token_bytes(tokens: Sequence[int]) -> bytes:
    """Return ``tokens`` as little-endian unsigned 32-bit integers.

    Raises ``OverflowError`` for an id below 0 or beyond 32 bits.
    """
    packed = array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def chain_keys(
    namespace_digest: bytes,
    tokens: Sequence[int],
    block_tokens: int,
    parent: bytes = b"",
) -> list[bytes]:
    """Return the keys of all whole blocks of ``tokens``, in order; a partial last block has none.

    ``parent`` is the key of the block before ``tokens``; empty at the start of a prompt.
    """
    packed = token_bytes(tokens)
    step = block_tokens * _TOKEN_BYTES
    keys = []
    for start in range(0, len(packed) - step + 1, step):
        block = parent + packed[start : start + step]
        parent = blake2b(block, digest_size=KEY_BYTES, key=namespace_digest).digest()
        keys.append(parent)
    return keys
