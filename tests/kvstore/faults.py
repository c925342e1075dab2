"""Faults for a store's media, and a store that meets them."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kvstore.store import TieredStore
from tests.kvstore.conftest import Rig


def raising(operation: str, error: BaseException) -> Callable[[str, bytes], None]:
    """Return a fault of one kind of operation."""

    def fail(called: str, _key: bytes) -> None:
        if called == operation:
            raise error

    return fail


def waiting(
    operation: str, until: threading.Event, called_for: list[bytes] | None = None
) -> Callable[[str, bytes], None]:
    """Return a medium that does not answer one kind of operation until it is let; notes its keys."""

    def fail(called: str, key: bytes) -> None:
        if called == operation:
            if called_for is not None:
                called_for.append(key)
            until.wait(10.0)

    return fail


def hanging(until: threading.Event) -> Callable[[str, bytes], None]:
    """Return a medium that does not answer anything until it is let."""

    def fail(_called: str, _key: bytes) -> None:
        until.wait(10.0)

    return fail


def stored_on_disk(rig: Rig, *numbers: int) -> TieredStore:
    """Return a store, just restarted, whose blocks are on disk alone."""
    rig.put(rig.open(), *numbers)
    rig.stores[0].close()
    return rig.open()
