from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.redis_backend import RedisBackend
from backends.redis_layout import PART_BYTES
from kvstore.conformance.backend import BackendConformance
from tests.valkey import Valkey


class RedisConformance(BackendConformance):
    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey) -> None:
        self.server = valkey

    def make_backend(self, tmp_path: Path) -> RedisBackend:  # noqa: ARG002 - its medium is the server
        return self.server.backend()

    @contextmanager
    def break_medium(self, backend: object) -> Iterator[None]:  # noqa: ARG002 - its medium is the server
        self.server.admin().config_set("maxmemory", 1)
        yield
        self.server.admin().config_set("maxmemory", 0)


class TestBlocksOfOnePart(RedisConformance):
    pass


class TestBlocksOfSeveralParts(RedisConformance):
    block_bytes = 2 * PART_BYTES + 7
