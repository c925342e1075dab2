"""``prefixd serve`` without a model: a store alone."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from api.serving_config import sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from api.tokens import authenticate_by
from engine_adapter.serving_config import SidecarConfig
from engine_adapter.sidecar import Sidecar, open_sidecar
from kvstore.connect import connect
from kvstore.errors import AccessError, ConfigError
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from tests.eventually import eventually

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [(REPOSITORY / "docs" / page).read_text() for page in ("sidecar.md", "admin.md")]
NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)


def settings_in(folder: Path, **more: object) -> Settings:
    """Return settings for a small store in a folder of its own."""
    small = {"host_bytes": "8MiB", "disk_bytes": "16MiB", "disk_path": folder / "blocks", "port": 0}
    return Settings.model_validate({**small, "cache_path": folder, **more})


@pytest.fixture
def sidecar(tmp_path: Path) -> Iterator[Sidecar]:
    """Return a store alone."""
    sidecar = open_sidecar(sidecar_config(settings_in(tmp_path)))
    yield sidecar
    sidecar.close()


def test_what_it_keeps_outlives_it(tmp_path: Path) -> None:
    settings, payload = settings_in(tmp_path), memoryview(bytes(range(256)) * 32)
    (key,) = chain_keys(NAMESPACE.digest, range(16), 16)
    for is_first in (True, False):
        sidecar = open_sidecar(sidecar_config(settings))
        client = connect(f"unix://{tmp_path}/store.sock")
        out = bytearray(len(payload))
        assert client.get_into(key, memoryview(out)) is not is_first
        assert is_first or out == payload
        assert client.put(NAMESPACE, key, b"", payload) is is_first
        assert client.flush(10.0)
        client.close()
        sidecar.close()


def test_with_a_token_the_socket_needs_it_too(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, api_token="secret")
    sidecar = open_sidecar(sidecar_config(settings), authenticate_by(settings))
    address = f"unix://{tmp_path}/store.sock"
    for wrong in (None, "", "secre", "secret "):
        with pytest.raises(AccessError):
            connect(address, wrong)
    client = connect(address, "secret")
    assert client.is_connected
    client.close()
    app = TestClient(create_store_app(sidecar, settings))
    named = {"X-Prefixd-Client": "c"}
    assert app.get("/store", headers=named).status_code == 401
    assert app.get("/store", headers={**named, "Authorization": "Bearer secret"}).status_code == 200
    assert app.get("/health").status_code == 200
    sidecar.close()


def test_every_route_is_documented(sidecar: Sidecar, tmp_path: Path) -> None:
    described = TestClient(create_store_app(sidecar, settings_in(tmp_path))).get("/openapi.json").json()
    routes = {
        f"{method.upper()} {path}" for path, methods in described["paths"].items() for method in methods
    }
    told = re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`]+)`", "\n".join(PAGES), re.MULTILINE)
    assert set(told) == routes


def test_what_clients_hold_is_given_back_when_the_service_ends(sidecar: Sidecar, tmp_path: Path) -> None:
    named = {"X-Prefixd-Client": "c"}
    (key,) = chain_keys(NAMESPACE.digest, range(16), 16)
    assert sidecar.store.put(NAMESPACE, key, b"", memoryview(bytes(4096)))
    with TestClient(create_store_app(sidecar, settings_in(tmp_path))) as app:
        assert app.post("/store/lookups", headers=named, json={"keys": [key.hex()]}).json()["lease"]
        assert sidecar.store.num_holds > 0
    eventually(lambda: sidecar.store.num_holds == 0)


def test_health_and_metrics_are_those_of_the_store(sidecar: Sidecar, tmp_path: Path) -> None:
    app = TestClient(create_store_app(sidecar, settings_in(tmp_path)))
    assert app.get("/health").json() == {"status": "ok", "reasons": {}}
    assert 'prefixd_tier_budget_bytes{tier="host"} 8.388608e+06' in app.get("/metrics").text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_case_17_health_says_when_a_thread_of_the_service_has_died(
    sidecar: Sidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_self: object) -> None:
        raise SystemExit

    monkeypatch.setattr("kvstore.remote.server.SocketServer._tick", die)
    monkeypatch.setattr("api.store.clients._SWEEP_S", 0.01)
    monkeypatch.setattr("api.store.clients.StoreClients._sweep", die)
    app = TestClient(create_store_app(sidecar, settings_in(tmp_path)))
    eventually(lambda: app.get("/health").status_code == 503)
    eventually(lambda: app.get("/health").json()["reasons"].keys() == {"socket", "clients"})


def test_rules_for_prefixes_need_a_model(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text('[[prefixes]]\ntext = "You are"\nttl = "1h"\n')
    with pytest.raises(ConfigError, match="need a model"):
        sidecar_config(settings_in(tmp_path, retention=rules))


def test_a_socket_that_cannot_be_opened_leaves_the_disk_to_others(tmp_path: Path) -> None:
    config = sidecar_config(settings_in(tmp_path))
    (tmp_path / "store.sock").write_text("no socket")
    with pytest.raises(ConfigError, match="no socket"):
        open_sidecar(config)
    open_sidecar(SidecarConfig(config.tiers, None, {}, None)).close()


def test_the_command_says_where_it_is_and_ends_on_a_signal(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "prefixd", "serve", "--port", "0", "--host-bytes", "8MiB"),
        *("--disk-bytes", "0", "--cache-path", str(tmp_path), "--socket", str(tmp_path / "s")),
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        ready = server.stdout.readline()
        told = re.fullmatch(r"prefixd keeps a store at (\S+) and (\S+) \(tiers: host 8 MiB\)\n", ready)
        assert told, ready
        client = connect(told[1])
        assert client.tier_names == ("device", "host")
        assert httpx.get(f"{told[2]}/health").status_code == 200
        client.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(("access", "mode"), [("owner", 0o600), ("group", 0o660)])
def test_the_socket_is_its_owners_or_its_groups(tmp_path: Path, access: str, mode: int) -> None:
    sidecar = open_sidecar(sidecar_config(settings_in(tmp_path, socket_access=access)))
    assert (tmp_path / "store.sock").stat().st_mode & 0o777 == mode
    sidecar.close()
