"""SGLang's host memory as bytes: by address and size, without a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Pieces: TypeAlias = Sequence[memoryview]
"""The memory of one page, in the order in which its bytes are stored."""


def at_address(address: int, nbytes: int) -> memoryview:
    """Return memory that belongs to somebody else, who keeps it while it is used."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


def of_tensor(tensor: Any) -> memoryview:
    """Return the memory of a tensor, which must be kept while it is used; any dtype.

    Raises ``ValueError`` for one that is not contiguous or not in host memory.
    """
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"a page must be contiguous in host memory, not {tuple(tensor.stride())} strided")
    return at_address(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def num_bytes(pieces: Pieces) -> int:
    """Return how many bytes a page has."""
    return sum(map(len, pieces))


def gather(pieces: Pieces, out: memoryview) -> None:
    """Copy a page's pieces into ``out``, one after the other. Other threads go on meanwhile."""
    start = 0
    for piece in pieces:
        _copy(out[start : start + len(piece)], piece)
        start += len(piece)


def scatter(data: memoryview, pieces: Pieces) -> None:
    """Copy a page's bytes into its pieces. Other threads go on meanwhile."""
    start = 0
    for piece in pieces:
        _copy(piece, data[start : start + len(piece)])
        start += len(piece)


def _copy(target: memoryview, source: memoryview) -> None:
    # Unlike an assignment of slices, numpy's lets the interpreter's lock go.
    np.frombuffer(target, np.uint8)[:] = np.frombuffer(source, np.uint8)
