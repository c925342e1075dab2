"""Page-locks an arena's slabs for a GPU, so that copies to it run at full speed and asynchronously."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from kvstore.arena import LockPages
from kvstore.slab import Unlock

Register = Callable[[int, int], int]
Unregister = Callable[[int], int]

_SUCCESS = 0


class PageLocker:
    """An arena's ``lock_pages`` hook over a driver's two functions, which return 0 on success.

    ``register(address, nbytes)`` and ``unregister(address)``. A refusal (a limit of the system)
    leaves the slab pageable: copies are slower, nothing else changes. ``refused_bytes`` says so.
    """

    def __init__(self, register: Register, unregister: Unregister) -> None:
        self._register = register
        self._unregister = unregister
        self.refused_bytes = 0

    def __call__(self, memory: memoryview) -> Unlock:
        """Lock the pages of ``memory``; the function returned unlocks them again."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if self._register(address, len(memory)) != _SUCCESS:
            self.refused_bytes += len(memory)
            return lambda: None
        return lambda: self._unlock(address)

    def _unlock(self, address: int) -> None:
        self._unregister(address)


def cuda_page_locker() -> LockPages | None:
    """Return the hook for the CUDA device in use, or ``None`` where there is none."""
    try:
        import torch  # noqa: PLC0415  # a store without an engine has no torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # theirs
    return PageLocker(
        lambda address, nbytes: int(runtime.cudaHostRegister(address, nbytes, 0)),
        lambda address: int(runtime.cudaHostUnregister(address)),
    )
