"""One meaning, wherever the store is: over HTTP, answered by a real server."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from kvstore.conformance.store import BlockStoreConformance, StorePlace
from kvstore.remote.client import RemoteStore
from kvstore.remote.http_transport import HttpAddress, HttpTransport
from tests.api.store_server import StoreServer
from tests.kvstore.served_store import ServedStore


class TestOverHttp(BlockStoreConformance):
    @pytest.fixture
    def place(self) -> Iterator[StorePlace]:
        served = ServedStore()
        server = StoreServer(served.store)

        def connect() -> RemoteStore:
            address = HttpAddress(urlsplit(server.url))
            return served.client(HttpTransport(address, served.clock))

        yield StorePlace(connect, served.pass_s)
        served.close(server.close)
