"""Case 17: a thread that dies is replaced, or health says so; it is never silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvstore.conformance.store import BLOCK_BYTES, NAMESPACE, Prompt
from kvstore.remote.client import RemoteStore
from kvstore.remote.server import SocketServer
from kvstore.remote.session import Session
from kvstore.remote.socket_transport import SocketAddress, SocketTransport
from kvstore.statistics import State
from tests.eventually import eventually
from tests.kvstore.conftest import DictBackend, Rig
from tests.kvstore.served_store import ServedStore

dies = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture
def served() -> Iterator[ServedStore]:
    """Return a store to be served."""
    served = ServedStore()
    yield served
    served.close()


def connected(served: ServedStore, path: Path) -> RemoteStore:
    """Return a new client."""
    return served.client(SocketTransport(SocketAddress(path), served.clock))


def failing(error: BaseException, times: int) -> Callable[..., None]:
    """Return something that raises so many times, and then does nothing."""
    left = [error] * times

    def fail(*_args: object) -> None:
        if left:
            raise left.pop()

    return fail


def test_case_17_a_sweep_that_fails_is_tried_again_and_told(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = rig.open()
    monkeypatch.setattr(store._placement, "retry_headers", failing(OSError("no such luck"), 1))
    eventually(lambda: store.health().state is State.DEGRADED)
    assert store.health().reason == "what has expired may stay: no such luck"
    eventually(lambda: store.health().state is State.OK)


@dies
def test_case_17_a_dead_sweeper_is_told_by_health(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    store = rig.open()
    monkeypatch.setattr(store._placement, "retry_headers", failing(SystemExit(), 1))
    store._sweeper._thread.join(5.0)
    assert store.health().state is State.UNHEALTHY
    assert "its thread has died: restart the server" in store.health().reason
    store.close()
    rig.stores.clear()


def test_case_17_a_scan_that_breaks_off_is_told_by_health(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def slip(_found: object) -> None:
        raise AssertionError("a slip")

    monkeypatch.setattr("kvstore.recovery.parse", slip)
    rig.medium = DictBackend(kept_manifests={NAMESPACE.digest: NAMESPACE.manifest()})
    store = rig.open()
    eventually(lambda: store.health().state is State.DEGRADED)
    assert store.health().reason == "the scan of tier disk was broken off: a slip"


def test_case_17_who_lets_clients_in_survives_what_fails_for_one_of_them(
    served: ServedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s"
    server = served.on_socket(path)
    monkeypatch.setattr(SocketServer, "_tick", failing(RuntimeError("can't start new thread"), 2))
    clients = [connected(served, path) for _ in range(4)]
    assert Prompt(clients[-1], 1).put() == 1
    assert server.is_accepting
    server.close()
    assert not server.is_accepting


def test_case_17_a_clients_worker_that_breaks_off_ends_its_connection_and_it_comes_back(
    served: ServedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served.on_socket(tmp_path / "s")
    client, other = connected(served, tmp_path / "s"), connected(served, tmp_path / "s")
    prompt = Prompt(client, 2)
    hit = other.lookup(prompt.keys)
    with monkeypatch.context() as broken:
        broken.setattr(Session, "_commit", failing(MemoryError("out of it"), 1))
        reserved = client.reserve(NAMESPACE, prompt.keys[0], b"", BLOCK_BYTES)
        assert reserved is not None
        reserved.commit()
        eventually(lambda: not client.is_connected)
    eventually(lambda: served.store.statistics().staging_bytes == 0)
    served.pass_s(2.0)
    assert prompt.put() == 2, "it is connected again"
    assert client.flush(5.0)
    assert other.is_connected
    hit.release()
    server.close()
