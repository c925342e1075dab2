"""The store is killed while clients work: they go on without it, and find it and its blocks again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvstore.conformance.prompts import NAMESPACE, Prompt
from kvstore.connect import connect
from kvstore.remote.client import RemoteStore
from kvstore.statistics import State
from tests.eventually import eventually

REPOSITORY = Path(__file__).resolve().parents[2]


@contextmanager
def served(folder: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a store; yields its process, and its addresses by their scheme."""
    command = [
        *(sys.executable, "-m", "prefixd", "serve", "--port", str(port), "--host-bytes", "8MiB"),
        *("--disk-bytes", "16MiB", "--disk-path", str(folder / "blocks"), "--cache-path", str(folder)),
        *("--socket", str(folder / "s")),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        told = re.match(r"prefixd keeps a store at (\S+) and (\S+) ", server.stdout.readline())
        assert told
        try:
            yield server, {"unix": told[1], "http": told[2]}
        finally:
            server.kill()


def work(store: RemoteStore, stop: threading.Event, wrong: list[str]) -> None:
    """Store and load without end; whatever raises or is not what was stored is noted."""
    number = 0
    while not stop.is_set():
        number = number % 50 + 1
        prompt = Prompt(store, 2, first=10_000 * number)
        try:
            prompt.put()
            for index in range(2):
                if (block := prompt.load(index)) is not None:
                    block.release()
            prompt.has(1)
        except Exception as error:  # noqa: BLE001  nothing may raise for a server that is gone
            wrong.append(repr(error))
            return


@pytest.mark.parametrize("kind", ["unix", "http"])
def test_clients_outlive_a_store_that_is_killed_and_find_its_disk_again(tmp_path: Path, kind: str) -> None:
    stop, wrong = threading.Event(), list[str]()
    with served(tmp_path, 0) as (server, addresses):
        port = int(addresses["http"].rpartition(":")[2])
        client, worker = connect(addresses[kind]), connect(addresses[kind])
        prompt = Prompt(client, 3)
        assert prompt.put() == 3
        assert client.flush(10.0)
        working = threading.Thread(target=work, args=(worker, stop, wrong))
        working.start()
        hit = client.lookup(prompt.keys)
        server.kill()
        server.wait()
    eventually(lambda: client.lookup(prompt.keys).tiers == (None, None, None))
    assert client.load(hit, 0, client.now_s() + 1.0).take() is None or kind == "unix", "its memory is mapped"
    assert client.put(NAMESPACE, prompt.keys[0], b"", memoryview(bytes(8192))) is False
    assert client.health().state is State.UNHEALTHY
    assert not client.flush(0.1)
    with served(tmp_path, port):
        eventually(lambda: client.lookup(prompt.keys).tiers == ("disk", "disk", "disk"))
        assert [prompt.has(number) for number in range(3)] == [True, True, True]
        eventually(lambda: worker.is_connected)
        stop.set()
        working.join(30.0)
        assert not wrong
        client.close()
        worker.close()
