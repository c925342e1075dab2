"""TLS as a client sees it. The test server's build has none, so something in front of it speaks it."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from backends.redis_layout import PART_BYTES
from kvstore.conformance.frames import get, make_key, make_payload, put
from kvstore.errors import BackendError
from tests.valkey import Valkey

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")

KEY = make_key("a")


def openssl(*words: str | Path, folder: Path) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an authority and certificates of it for a server and a client."""
    folder = tmp_path_factory.mktemp("certificates")
    subject = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    for authority in ("ca", "stranger"):
        openssl(
            "req", "-x509", *subject, "-subj", f"/CN={authority}", "-keyout", f"{authority}.key",
            "-out", f"{authority}.pem", folder=folder,
        )  # fmt: skip
    for name in ("server", "client"):
        openssl(
            "req", "-x509", *subject, "-subj", f"/CN={name}", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
            "-keyout", f"{name}.key", "-out", f"{name}.pem", folder=folder,
        )  # fmt: skip
    return folder


@pytest.fixture
def tls_url(valkey: Valkey, certificates: Path) -> Iterator[str]:
    """Return the address of something that speaks TLS, wants a client's certificate, and asks ``valkey``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    context.load_verify_locations(certificates / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=relay, args=(context, connection, valkey), daemon=True).start()

    serving = threading.Thread(target=serve)
    serving.start()
    yield f"rediss://127.0.0.1:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    serving.join()


def relay(context: ssl.SSLContext, connection: socket.socket, valkey: Valkey) -> None:
    """Pass commands on, and their replies back, until one side is gone."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(str(valkey.socket))
        with context.wrap_socket(connection, server_side=True) as client:
            client.settimeout(0.01)
            server.settimeout(0.01)
            while True:
                for source, target in ((client, server), (server, client)):
                    with suppress(TimeoutError):
                        while data := source.recv(65536):
                            target.settimeout(5.0)
                            target.sendall(data)
                            target.settimeout(0.01)
                        return


def test_blocks_travel_over_tls_with_certificates_of_both_sides(tls_url: str, certificates: Path) -> None:
    payload = make_payload("a", 2 * PART_BYTES + 5)
    files: dict[str, Any] = {
        "ca_file": certificates / "ca.pem",
        "cert_file": certificates / "client.pem",
        "key_file": certificates / "client.key",
    }
    with closing(Valkey.backend_at(tls_url, timeout_s=10.0, **files)) as redis:
        put(redis, KEY, payload)
        assert get(redis, KEY, len(payload)) == payload
        assert redis.resident([KEY]) != [None]
        assert "problem" not in redis.stats().facts, redis.stats().facts


def test_a_server_whose_certificate_is_a_strangers_is_not_trusted(tls_url: str, certificates: Path) -> None:
    for ca_file in (None, certificates / "stranger.pem"):
        untrusting = Valkey.backend_at(tls_url, ca_file=ca_file)
        with closing(untrusting), pytest.raises(BackendError, match=r"reached: .*certificate verify failed"):
            put(untrusting, KEY, b"payload")


def test_a_client_without_a_certificate_is_refused(tls_url: str, certificates: Path) -> None:
    nobody = Valkey.backend_at(tls_url, ca_file=certificates / "ca.pem")
    with closing(nobody), pytest.raises(BackendError, match="cannot be reached: "):
        put(nobody, KEY, b"payload")
