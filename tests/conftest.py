"""Fixtures that more than one room uses."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.folders import cache_folder
from tests.valkey import Valkey

# Threads that wait for each other give the processor away instead of turning on the spot: on a busy
# machine tests are several times as fast. Read when torch is loaded, here and in servers started by tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let servers that tests start keep nothing in the user's own cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFIXD_CACHE_PATH", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, a real model; the first use on a machine converts it."""
    from engine_adapter.engine.convert import smollm2_folder  # noqa: PLC0415 - torch, for those who ask

    return smollm2_folder(cache_folder())


@pytest.fixture(scope="module")
def shared_valkey() -> Iterator[Valkey]:
    """Return a server that the tests of a module share; ask for ``valkey`` instead."""
    server = Valkey()
    yield server
    server.close()


@pytest.fixture
def valkey(shared_valkey: Valkey) -> Valkey:
    """Return a running server that is empty; for tests that leave its settings as they were."""
    shared_valkey.admin().flushall()
    return shared_valkey


@pytest.fixture
def own_valkey() -> Iterator[Valkey]:
    """Return a server of the test's own, to be killed, hung or configured."""
    server = Valkey()
    yield server
    server.close()
