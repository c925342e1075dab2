"""One meaning, wherever the store is: in this process, or behind a unix socket (HTTP: ``tests/api``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore.conformance.store import BlockStoreConformance, StorePlace
from kvstore.remote.client import RemoteStore
from kvstore.remote.socket_transport import SocketAddress, SocketTransport
from tests.kvstore.served_store import ServedStore


class TestInThisProcess(BlockStoreConformance):
    @pytest.fixture
    def place(self) -> Iterator[StorePlace]:
        served = ServedStore(is_remote=False)
        yield StorePlace(lambda: served.store, served.pass_s)
        served.close()


class TestBehindASocket(BlockStoreConformance):
    @pytest.fixture
    def place(self, tmp_path: Path) -> Iterator[StorePlace]:
        served = ServedStore()
        server = served.on_socket(tmp_path / "store.sock")

        def connect() -> RemoteStore:
            address = SocketAddress(tmp_path / "store.sock")
            return served.client(SocketTransport(address, served.clock))

        yield StorePlace(connect, served.pass_s)
        served.close(server.close)
