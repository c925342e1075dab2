"""Whether a store gets back all that its clients held when they die at any moment.

    python benchmarks/dying_clients.py [--seconds 600] [--clients 6] [--json FILE]

Clients on a unix socket and over HTTP store, look up, load, reserve, and leave things lying about, until each
is killed (SIGKILL) within a second or two. Every byte that one of them reads is checked. The JSON says
what was held before and after: leases and loads, staging memory, sessions, pools, threads; file descriptors
and resident memory (but for those of the arena, which keeps what it has within its budget).
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI

from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.serving_config import SidecarConfig, TierSetup
from engine_adapter.sidecar import Sidecar, open_sidecar
from kvstore.namespace import Namespace
from kvstore.shared_memory import SLAB_NAME

_HOST_BYTES = 64 << 20
_DISK_BYTES = 128 << 20
_WARM_SHARE = 0.2
_SLACK_BYTES = 32 << 20
_BLOCK_BYTES = 1 << 18
_POOLED = ("store_", "store-waits_")
"""Threads that are kept, a bounded number: they are there from their first use on."""
_NAMESPACE = Namespace("others", "{}", "float32", "float32", block_tokens=16)
_NURSERY = Path(__file__).parent / "sides" / "nursery.py"


def main() -> None:
    """Run the soak and write its figures."""
    arguments = _arguments()
    report = soak(arguments.seconds, arguments.clients)
    text = json.dumps(report, indent=2)
    print(text)
    if arguments.json:
        arguments.json.write_text(text + "\n")
    if not report["is_level"]:
        raise SystemExit(1)


def soak(
    seconds: float, num_clients: int, silent_s: float = 125.0, *, over_http: bool = True
) -> dict[str, Any]:
    """Have clients die for so long; returns what was held before and after.

    Over HTTP the rest of a client goes when it has been silent for ``silent_s``.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        _served(Path(folder), over_http=over_http) as (held, addresses),
    ):
        _let_die(addresses, seconds * _WARM_SHARE, num_clients)  # memory is full then, caches are warm
        before = _at_rest(held, silent_s)
        ended = _let_die(addresses, seconds * (1 - _WARM_SHARE), num_clients)
        after = _at_rest(held, silent_s)
    counts = {name: (before[name], after[name]) for name in before if name != "resident_bytes"}
    is_level = all(then == now for then, now in counts.values())
    grown_bytes = after["resident_bytes"] - before["resident_bytes"]
    return {
        "seconds": seconds,
        **ended,
        "before": before,
        "after": after,
        "is_level": is_level
        and grown_bytes <= _SLACK_BYTES
        and not ended["wrong_blocks"] + ended["failed_clients"],
    }


class Held:
    """What a store's server holds for its clients, and what it takes of the machine."""

    def __init__(self, sidecar: Sidecar, app: FastAPI) -> None:
        self._sidecar = sidecar
        self._app = app

    def now(self) -> dict[str, int]:
        """Return all of it."""
        store, server = self._sidecar.store, self._sidecar.server
        statistics = store.statistics()
        status = Path("/proc/self/status").read_text()
        return {
            "holds": store.num_holds,
            "staging_bytes": statistics.staging_bytes,
            "pooled_blocks": statistics.tiers[0].num_blocks,
            "socket_clients": 0 if server is None else server.num_clients,
            "http_clients": self._app.state.store.clients.num_clients,
            "threads": sum(not thread.name.startswith(_POOLED) for thread in threading.enumerate()),
            "descriptors": sum(SLAB_NAME not in name for name in _open_descriptors()),
            "resident_bytes": int(status.split("RssAnon:")[1].split()[0]) * 1024,
        }


def _open_descriptors() -> list[str]:
    names = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it was for the folder itself
            names.append(str(entry.readlink()))
    return names


@contextmanager
def _served(folder: Path, *, over_http: bool) -> Iterator[tuple[Held, list[str]]]:
    """Serve a small store from this process; yields what it holds, and where it is."""
    tiers = (
        TierSetup("host", _HOST_BYTES, "lru", "through"),
        TierSetup("disk", _DISK_BYTES, "lru", "through", folder / "blocks"),
    )
    path = folder / "store.sock"
    sidecar = open_sidecar(SidecarConfig(tiers, 600.0, {}, path))
    app = create_store_app(sidecar, Settings.model_validate({"cache_path": folder}))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    _fill(sidecar)
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    serving = threading.Thread(target=server.run, args=([listener],))
    serving.start()
    try:
        yield Held(sidecar, app), [f"unix://{path}", url] if over_http else [f"unix://{path}"]
    finally:
        server.should_exit = True
        serving.join()
        sidecar.close()
        sidecar.store.check()


def _fill(sidecar: Sidecar) -> None:
    """Have the memory tier full from the beginning."""
    for number in range(_HOST_BYTES // _BLOCK_BYTES):
        sidecar.store.put(_NAMESPACE, number.to_bytes(16, "big"), b"", memoryview(bytes(_BLOCK_BYTES)))


def _at_rest(held: Held, silent_s: float) -> dict[str, int]:
    """Return what is held when nothing more goes back, or after ``silent_s``."""
    ends_s = time.monotonic() + silent_s
    while True:
        now = held.now()
        is_empty = not any(now[name] for name in ("holds", "staging_bytes", "socket_clients", "http_clients"))
        if is_empty or time.monotonic() > ends_s:
            time.sleep(2.0)  # threads end, memory goes back
            return held.now()
        time.sleep(0.1)


def _let_die(addresses: list[str], seconds: float, num_clients: int) -> dict[str, int]:
    """Run a nursery of clients for so long; returns how many were killed and how many blocks were wrong."""
    command = [sys.executable, str(_NURSERY), str(num_clients), *addresses]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as nursery:
        time.sleep(seconds)
        told, _ = nursery.communicate("enough\n")
    result: dict[str, int] = json.loads(told)
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long clients die")
    parser.add_argument("--clients", type=int, default=6, help="how many live at a time")
    parser.add_argument("--json", type=Path, help="file for the report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
