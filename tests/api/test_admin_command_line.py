"""``prefixd admin`` as a command line: flags, tokens, help, completion, questions, errors in one line."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi.testclient import TestClient

from api.cli import build_cli
from api.client.address import server_of
from tests.api.admin_command import OLD, TOKEN, Commanded, admin, commanded, one_line

REPOSITORY = Path(__file__).resolve().parents[2]
# Which command is for which route.
ROUTES = {
    "GET /admin/overview": "overview",
    "GET /admin/tiers": "tiers",
    "GET /admin/blocks": "blocks",
    "GET /admin/blocks/{key}": "block",
    "GET /admin/prefixes": "prefixes",
    "POST /admin/resolve": "resolve",
    "GET /admin/namespaces": "namespaces",
    "DELETE /admin/namespaces/{digest}": "drop",
    "PUT /admin/namespaces/{digest}/budget": "budget",
    "GET /admin/pins": "pins",
    "POST /admin/pins": "pin",
    "POST /admin/unpin": "unpin",
    "GET /admin/quotas": "quotas",
    "PUT /admin/quotas/{tenant}": "quota",
    "POST /admin/ttl": "ttl",
    "POST /admin/evict": "evict",
    "POST /admin/move": "move",
    "POST /admin/warm": "warm",
    "POST /admin/verify": "verify",
    "POST /admin/clear": "clear",
    "POST /admin/tiers/{tier}/drain": "drain",
    "DELETE /admin/tiers/{tier}/drain": "undrain",
    "POST /admin/export": "export",
    "POST /admin/import": "import",
    "GET /admin/plans": "plans",
    "POST /admin/explain": "explain",
    "GET /admin/shadows": "shadows",
    "GET /admin/mode": "mode",
    "PUT /admin/mode": "mode",
    "GET /admin/jobs": "jobs",
    "GET /admin/jobs/{id}": "job",
    "DELETE /admin/jobs/{id}": "cancel",
    "GET /admin/log": "log",
    "GET /admin/config": "config",
    "GET /admin/audit": "audit",
    "PUT /admin/audit": "audit",
    "GET /admin/history": "history",
}
COMMANDS = sorted(set(ROUTES.values()))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commanded]:
    with commanded(tmp_path_factory.mktemp("store")) as server:
        server.keep(OLD)
        yield server


def commands() -> dict[str, Any]:
    group: Any = typer.main.get_command(build_cli())
    found: dict[str, Any] = group.commands["admin"].commands
    return found


def test_every_route_has_a_command_and_every_command_a_route(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"].items()
    routes = {f"{method.upper()} {path}" for path, methods in paths for method in methods}
    assert {route for route in routes if " /admin/" in route} == ROUTES.keys()
    assert commands().keys() == set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_that_would_be_understood(command: str) -> None:
    shown = admin(command, "--help", COLUMNS="300").output
    assert "--url" in shown
    assert "--token-file" in shown
    assert "--json" in shown
    examples = re.findall(r"prefixd (?:admin )?(\w+)(.*?) *\n", shown.partition("or example:")[2])
    told = [flags for name, flags in examples if name == command]
    assert told, shown
    known = set(re.findall(r"--[a-z][\w-]*", shown.partition("or example:")[0] + shown.partition("─ ")[2]))
    for flags in told:
        assert set(re.findall(r"--[a-z][\w-]*", flags)) <= known, flags


def test_no_flag_takes_a_token_itself() -> None:
    for command in commands().values():
        flags = {flag for parameter in command.params for flag in parameter.opts}
        assert {flag for flag in flags if "token" in flag} == {"--token-file"}


def test_a_token_comes_from_a_file_or_the_environment(server: Commanded, tmp_path: Path) -> None:
    right, empty = tmp_path / "token", tmp_path / "empty"
    right.write_text(f"{TOKEN}\n")
    empty.write_text("\n")
    by_file = {"PREFIXD_TOKEN": "wrong", "PREFIXD_URL": server.url}
    assert admin("tiers", "--token-file", str(right), **by_file).exit_code == 0
    line = "does not know the token that it was sent: set PREFIXD_TOKEN, or give --token-file"
    assert one_line(admin("tiers", **by_file), 1) == f"the server at {server.url} {line}"
    assert "holds no token" in one_line(admin("tiers", "--token-file", str(empty)), 2)
    assert "cannot read" in one_line(admin("tiers", "--token-file", str(tmp_path / "none")), 2)


def test_the_servers_own_token_is_sent_on_this_machine_alone(server: Commanded) -> None:
    own = {"PREFIXD_API_TOKEN": TOKEN, "PREFIXD_TOKEN": None}
    assert admin("tiers", "--url", server.url, **own).exit_code == 0
    assert admin("tiers", PREFIXD_PORT=server.url.rpartition(":")[2], **own).exit_code == 0
    assert server_of("http://192.0.2.1:8000", None, {"PREFIXD_API_TOKEN": TOKEN}).token is None
    assert server_of(server.url, None, {"PREFIXD_API_TOKEN": TOKEN}).token == TOKEN


def test_servers_do_not_mind_the_variables_of_their_clients() -> None:
    result = admin("tiers", PREFIXD_TOKEN="x", PREFIXD_URL="", PREFIXD_PORT="1")
    assert "no server answers at http://127.0.0.1:1" in one_line(result, 1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("evict", "--yes"), "selection: names no blocks: give keys, flags such as --model, or --all"),
        (("evict", "ab", "--all", "--yes"), "selection: name blocks either by keys, or by what they have"),
        (("evict", "--prompt", "x", "--all"), "selection: name blocks in one way"),
        (("pin", "ab" * 16), "for: say how long with --for, or with --until"),
        (("pin", "ab" * 16, "--for", "long"), "for: 'long': a duration is written like 30d"),
        (("pin", "ab" * 16, "--until", "soon"), "until: 'soon' is no time such as 2030-01-31T08:00"),
        (("ttl", "--all"), "ttl: give --ttl, --hard-ttl, or both"),
        (("blocks", "--older-than", "1y"), "older_than: '1y': a duration is written like 30d"),
        (("warm", "--chat"), "chat: belongs to a prompt; give --prompt, --file or --messages"),
        (("resolve", "--prompt", "a", "--file", "b"), "prompt: give either --prompt or --file"),
        (("resolve", "--messages", "/nowhere"), "file: cannot read /nowhere: No such file"),
        (("quota", "others", "disk"), "bounds: 'disk' is not written like disk=10GiB"),
        (("quota", "others", "disk=much"), "disk: 'much': a size is written like 2GiB"),
        (("import", "/nowhere"), "file: cannot read /nowhere: No such file"),
        (("tiers", "--url", "nonsense"), "url: 'nonsense' is no URL such as http://127.0.0.1:8000"),
        (
            ("tiers", "--url", "unix:///run/s"),
            "url: the socket is for engines; name the server's HTTP address",
        ),
    ],
)
def test_flags_that_cannot_be_used_are_one_line_and_code_2(
    server: Commanded, arguments: tuple[str, ...], line: str
) -> None:
    assert one_line(server.run(*arguments), 2).startswith(line)


@pytest.mark.parametrize("key", ["xyz", "../config", "a b"])
def test_what_the_server_refuses_is_one_line_and_code_1(server: Commanded, key: str) -> None:
    assert "refuses: " in one_line(server.run("block", key), 1)


def test_no_message_is_a_list_of_messages(server: Commanded, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    for text, reason in (("{", "is not JSON"), ("{}", "must hold a list of messages")):
        file.write_text(text)
        assert reason in one_line(server.run("resolve", "--messages", str(file)), 2)


def test_a_file_that_cannot_be_written_leaves_nothing_behind(server: Commanded, tmp_path: Path) -> None:
    out = tmp_path / "no-folder" / "out"
    assert "out: cannot write " in one_line(server.run("export", "--all", "--out", str(out)), 2)
    refused = server.run("export", "ab" * 16, "--out", str(tmp_path / "out"))
    assert refused.exit_code == 1
    assert list(tmp_path.iterdir()) == []


def in_a_terminal(server: Commanded, *arguments: str, answer: str) -> tuple[str, int]:
    """Run a command in a terminal of its own, and answer its question."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ,
        "PREFIXD_URL": server.url,
        "PREFIXD_TOKEN": TOKEN,
        "PYTHONPATH": str(REPOSITORY),
    }
    command = [sys.executable, "-m", "prefixd", "admin", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while select.select([ours], [], [], 30)[0]:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # it has ended
                break
            if b"[y/N]" in shown and answer:
                os.write(ours, answer.encode())
                answer = ""
        os.close(ours)
        return shown.decode(), process.wait(30)


def test_in_a_terminal_it_asks_and_does_what_is_said(server: Commanded) -> None:
    keys = server.keep(OLD, first_token=4096)
    shown, code = in_a_terminal(server, "evict", *keys, "--tier", "host", answer="n\n")
    assert (code, server.tiers_of(keys)) == (1, [["host", "disk"]] * 4)
    assert "would leave" in shown
    assert "nothing was done" in shown
    shown, code = in_a_terminal(server, "evict", *keys, "--tier", "host", answer="y\n")
    assert (code, server.tiers_of(keys)) == (0, [["disk"]] * 4)
    assert "evict: done (4 of 4" in shown


def test_names_of_strangers_do_not_drive_the_terminal(server: Commanded) -> None:
    server.keep(replace(OLD, weights="e" * 64, label="\x1b[31mred[bold]"))
    shown = server.shown("namespaces")
    assert "\x1b" not in shown
    assert "?[31mred[bold]" in shown


def test_the_shell_completes_commands() -> None:
    words = {"COMP_WORDS": "prefixd admin ev", "COMP_CWORD": "2", "_PREFIXD_COMPLETE": "complete_bash"}
    environment = {**os.environ, **words, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", "from api.cli import build_cli; build_cli()(prog_name='prefixd')"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["evict"]


def test_asking_a_server_needs_no_torch(server: Commanded) -> None:
    program = (
        "import sys; from api.cli import build_cli; build_cli()(['admin', 'tiers'], standalone_mode=False);"
        "print([name for name in ('torch', 'transformers', 'fastapi', 'uvicorn') if name in sys.modules])"
    )
    environment = {**os.environ, "PREFIXD_URL": server.url, "PREFIXD_TOKEN": TOKEN}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
