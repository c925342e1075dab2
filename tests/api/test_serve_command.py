"""``prefixd serve`` as a process: ready, told to stop, started again, started twice."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

REPOSITORY = Path(__file__).parents[2]
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 3
READY_WITHIN_S = 90.0

# A start takes some 6 s on an idle machine, and several times that on a busy one.
pytestmark = pytest.mark.timeout(300)


class Server:
    """One ``prefixd serve``; ``output`` is what it has printed."""

    def __init__(self, *flags: str) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PREFIXD_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "prefixd", "serve", *flags],
            cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ,
        )  # fmt: skip
        self.ready = ""

    def wait_until_ready(self) -> str:
        """Return the URL, once it is printed."""
        assert self.process.stdout is not None
        killer = threading.Timer(READY_WITHIN_S, self.process.kill)
        killer.start()
        self.ready = self.process.stdout.readline()
        killer.cancel()
        if not self.ready:
            pytest.fail(f"the server ended: {self.process.communicate()[1]}")
        return self.ready.split(" at ")[1].split("/v1")[0]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal, and return the exit code and what it wrote to stderr."""
        self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture
def start(model_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start(*flags: str) -> Server:
        small = ("--device-bytes", "4MiB", "--host-bytes", "16MiB", "--disk-bytes", "32MiB", "--port", "0")
        # This model computes faster than anything loads.
        loading = ("--reload-policy", "always-load")
        own = ("--model", str(model_folder), "--disk-path", str(tmp_path / "blocks"))
        servers.append(Server(*own, *small, *loading, *flags))
        return servers[-1]

    yield start
    for server in servers:
        server.process.kill()
        server.process.communicate()


def ask(url: str, prompt: str = PROMPT, **fields: object) -> dict[str, int]:
    """Return where the prompt's tokens came from."""
    body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    sources: dict[str, int] = answer.json()["kv"]["tokens_by_source"]
    return sources


def test_two_servers_on_one_disk_folder_and_a_restart(start: Callable[..., Server]) -> None:
    first = start()
    first_url = first.wait_until_ready()
    assert first.ready.startswith("prefixd serves tiny-llama at http://127.0.0.1:")
    assert first.ready.endswith("/v1 (tiers: device 4 MiB, host 16 MiB, disk 32 MiB)\n")
    assert list(ask(first_url)) == ["computed"]

    # The folder is the first one's: a second server does without it, and says so.
    second = start()
    second_url = second.wait_until_ready()
    assert second.ready.endswith("(tiers: device 4 MiB, host 16 MiB)\n")
    health = httpx.get(f"{second_url}/health")
    assert (health.status_code, health.json()["status"]) == (200, "degraded")
    assert list(health.json()["reasons"]) == ["disk"]
    assert list(ask(second_url)) == ["computed"]
    assert set(ask(second_url)) <= {"computed", "device", "host"}
    code, errors = second.stop(signal.SIGINT)
    assert code == 0
    assert errors.startswith("prefixd: disk: runs without this tier: ")
    assert errors.count("\n") == 1

    # What the first has written is there for whoever comes after it.
    assert first.stop() == (0, "")
    third = start()
    sources = ask(third.wait_until_ready())
    assert sources["disk"] > sources["computed"] > 0
    assert third.stop() == (0, "")


def test_a_port_in_use_is_one_line_before_the_model_is_read(start: Callable[..., Server]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        process = start("--port", str(port)).process
        output, errors = process.communicate(timeout=30)
    line = f"prefixd: port: {port} is in use on 127.0.0.1; stop who uses it, or choose another with --port\n"
    assert (process.returncode, output, errors) == (2, "", line)


@pytest.mark.parametrize(
    ("drain_s", "number"), [("0.1", None), ("60", signal.SIGTERM), ("60", signal.SIGINT)]
)
def test_a_stream_that_outlasts_the_stop_ends_with_an_error_of_its_own(
    start: Callable[..., Server], drain_s: str, number: int | None
) -> None:
    server = start("--drain-s", drain_s, "--max-sequences", "1")
    url = server.wait_until_ready()
    body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 10**6, "ignore_eos": True, "stream": True}
    with ExitStack() as streams:
        # One after the other, they take longer than the server waits.
        lines = [
            streams.enter_context(httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60))
            for _ in range(20)
        ]
        server.process.send_signal(signal.SIGTERM)
        if number:
            time.sleep(0.1)  # Two signals at once may be heard as one.
            server.process.send_signal(number)
        last = [[line for line in stream.iter_lines() if line][-2:] for stream in lines]
    stopping = '"message":"the server is stopping","type":"server_error","param":null,"code":"shutting_down"'
    assert any(stopping in line for lines in last for line in lines)
    assert all(lines[-1] == "data: [DONE]" for lines in last)
    assert (server.process.wait(20), server.process.stderr and server.process.stderr.read()) == (0, "")


def test_a_server_told_to_stop_lets_requests_finish_but_not_for_ever(start: Callable[..., Server]) -> None:
    server = start("--drain-s", "4", "--log-level", "error")
    url = server.wait_until_ready()
    body = {"model": "tiny-llama", "prompt": "x", "max_tokens": 30, "ignore_eos": True, "stream": True}
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as half:
        half.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()
            next(lines)
            server.process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        server.process.wait(20)
    assert server.process.returncode == 0
