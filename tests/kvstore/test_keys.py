from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.keys import chain_keys, token_bytes

NAMESPACE = bytes(range(16))
GOLDEN_KEYS = [
    "fcdd68b56b92d17df09e78b584f3d8c9",
    "6b04afb286bafbc08f889c523ec014b3",
]
tokens = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_keys_are_what_they_have_always_been() -> None:
    keys = chain_keys(NAMESPACE, range(32), 16)
    assert [key.hex() for key in keys] == GOLDEN_KEYS


def test_tokens_are_hashed_as_little_endian_32_bits() -> None:
    assert token_bytes([1, 0x01020304]) == bytes([1, 0, 0, 0, 4, 3, 2, 1])


def test_a_partial_block_has_no_key() -> None:
    assert len(chain_keys(NAMESPACE, range(31), 16)) == 1
    assert chain_keys(NAMESPACE, range(15), 16) == []


def test_a_key_names_the_whole_prefix() -> None:
    same_tokens_other_prefix = chain_keys(NAMESPACE, [*range(1, 17), *range(16, 32)], 16)
    assert chain_keys(NAMESPACE, range(32), 16)[1] != same_tokens_other_prefix[1]


@given(tokens, st.integers(1, 7))
def test_a_chain_can_be_continued_from_any_block(ids: list[int], block_tokens: int) -> None:
    keys = chain_keys(NAMESPACE, ids, block_tokens)
    for done in range(1, len(keys)):
        rest = chain_keys(NAMESPACE, ids[done * block_tokens :], block_tokens, keys[done - 1])
        assert keys[:done] + rest == keys


@given(tokens)
def test_another_namespace_has_other_keys(ids: list[int]) -> None:
    assert not set(chain_keys(NAMESPACE, ids, 4)) & set(chain_keys(b"x" * 16, ids, 4))


def test_a_token_beyond_32_bits_is_refused() -> None:
    with pytest.raises(OverflowError):
        chain_keys(NAMESPACE, [2**32] * 16, 16)
