"""A nursery of clients of a store, each killed at some moment; see ``benchmarks/dying_clients.py``.

    python benchmarks/sides/nursery.py CLIENTS ADDRESS...

When a line comes in, it ends and tells how many were killed, how many read a wrong block, how many failed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time

from kvstore.connect import connect
from kvstore.errors import PrefixdError
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.remote.client import RemoteStore

_BLOCK_BYTES = 1 << 18
_NUM_PROMPTS = 64
_NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)
_WRONG = 3


def main(num_clients: int, addresses: list[str]) -> None:
    """Have so many clients at a time, kill each soon, and tell how many when a line comes in."""
    is_enough = threading.Event()
    threading.Thread(target=_wait_for_a_line, args=(is_enough,), daemon=True).start()
    counts = {"killed_clients": 0, "wrong_blocks": 0, "failed_clients": 0}
    dies_s: dict[int, float] = {}
    while dies_s or not is_enough.is_set():
        while len(dies_s) < num_clients and not is_enough.is_set():
            address = addresses[counts["killed_clients"] % len(addresses)]
            dies_s[_fork(address)] = time.monotonic() + random.uniform(0.05, 1.5)  # noqa: S311  no secret
        for client, at_s in list(dies_s.items()):
            if is_enough.is_set() or at_s <= time.monotonic():
                del dies_s[client]
                counts[_kill(client)] += 1
        time.sleep(0.005)
    print(json.dumps(counts))


def _wait_for_a_line(is_enough: threading.Event) -> None:
    sys.stdin.readline()
    is_enough.set()


def _kill(client: int) -> str:
    """Kill a client; returns what it is to be counted as."""
    os.kill(client, signal.SIGKILL)
    _, status = os.waitpid(client, 0)
    if not os.WIFEXITED(status):
        return "killed_clients"
    return "wrong_blocks" if os.WEXITSTATUS(status) == _WRONG else "failed_clients"


def _fork(address: str) -> int:
    """Return the number of a new process that is a client until it is killed."""
    client = os.fork()
    if not client:
        random.seed(os.getpid() ^ time.time_ns())
        os._exit(_live(address))
    return client


def _live(address: str) -> int:
    store = connect(address, memory_bytes=32 << 20)
    acts = (_store, _load, _load, _load, _leave_lying, _hold_in_pool)
    while True:
        number = random.randrange(_NUM_PROMPTS)  # noqa: S311  no secret
        keys = chain_keys(
            store.own_namespace(_NAMESPACE).digest, range(number << 20, (number << 20) + 128), 16
        )
        try:
            if not random.choice(acts)(store, keys):  # noqa: S311  no secret
                return _WRONG
        except PrefixdError:
            continue


def _payload(key: bytes) -> bytes:
    return key * (_BLOCK_BYTES // len(key))


def _store(store: RemoteStore, keys: list[bytes]) -> bool:
    for key, parent in zip(keys, [b"", *keys], strict=False):
        store.put(_NAMESPACE, key, parent, memoryview(_payload(key)))
    return True


def _load(store: RemoteStore, keys: list[bytes]) -> bool:
    """Load a prompt's blocks, and leave a third of them unread; says whether those read were right."""
    hit = store.lookup(keys)
    ends_s = store.now_s() + 5.0
    tickets = [(key, store.load(hit, index, ends_s)) for index, key in enumerate(keys)]
    for key, ticket in tickets:
        ticket.wait(5.0)
        block = ticket.take()
        if block is None:
            continue
        if block.data != _payload(key):
            return False
        if random.random() < 2 / 3:  # noqa: S311  no secret
            block.release()
    return True


def _leave_lying(store: RemoteStore, keys: list[bytes]) -> bool:
    store.lookup(keys, lease_s=2.0)
    store.reserve(_NAMESPACE, os.urandom(16), b"", _BLOCK_BYTES)
    return True


def _hold_in_pool(store: RemoteStore, keys: list[bytes]) -> bool:
    for key, parent in zip(keys, [b"", *keys], strict=False):
        store.device_added(key, parent, _NAMESPACE)
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
