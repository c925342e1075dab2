"""``prefixd explain`` against a real server on a free port."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from api.cli import build_cli
from api.explanation_text import account_text, explanation_text
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from tests.api.test_live_server import running

MODEL = "tiny-llama"
TOKEN = "s3cret"
PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4


@pytest.fixture
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(reload_policy="always-load", api_token=TOKEN)


@pytest.fixture
def serving(settings: Settings) -> Iterator[Serving]:
    with closing(assemble(serving_config(settings))) as serving:
        yield serving


@pytest.fixture
def url(serving: Serving, settings: Settings) -> Iterator[str]:
    with running(serving, settings) as url:
        yield url


def explain(*arguments: str, token: str | None = TOKEN, stdin: str = "") -> Result:
    environ = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PREFIXD_API_TOKEN": token}
    return CliRunner().invoke(build_cli(), ["explain", *arguments], env=environ, input=stdin)


def complete(url: str, **fields: Any) -> None:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2, "ignore_eos": True, **fields}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60).raise_for_status()


def one_line(result: Result, code: int) -> str:
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("prefixd: ")
    assert result.stderr.count("\n") == 1
    return result.stderr.removeprefix("prefixd: ").strip()


def test_the_last_request_is_explained(url: str, serving: Serving) -> None:
    assert explain("--url", url).stdout == "no request has ended yet\n"
    complete(url)
    missed = explain("--url", f"{url}/v1").stdout
    assert "request 0, ended " in missed
    assert "nothing to load: block 0, from token 0 on, was stored by nobody" in missed
    assert "first miss" not in missed
    serving.engine.flush()
    serving.engine.clear_pool()
    complete(url)
    loaded = explain("--url", url).stdout
    assert "request 1, ended " in loaded
    assert "mode serve, policy always-load" in loaded
    assert "every block that a tier has is loaded" in loaded
    for row in ("chosen: load all", "compute everything", "measured"):
        line = next(line for line in loaded.splitlines() if line.strip().startswith(row))
        assert line.endswith("s"), line
    assert " host" in loaded


def test_a_prompt_is_explained_and_not_run(url: str, serving: Serving, tmp_path: Path) -> None:
    complete(url, cache_salt="mine")
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    shared = explain("--url", url, "--file", str(file), "--salt", "mine")
    assert shared.exit_code == 0, shared.stderr
    assert "a prompt that was not run: " in shared.stdout
    assert ": device, share" in shared.stdout
    assert explain("--url", url, "--file", "-", "--salt", "mine", stdin=PROMPT).stdout == shared.stdout
    assert explain("--url", url, "--prompt", PROMPT, "--salt", "mine").stdout == shared.stdout
    missed = explain("--url", url, "--prompt", PROMPT).stdout
    assert "found: nothing" in missed
    assert ": nowhere, compute" in missed
    assert "first miss: block 0, from token 0 on, was stored by nobody" in missed
    assert serving.engine.statistics().requests == {"length": 1}


def test_a_chat_is_put_into_the_models_template(url: str) -> None:
    plain, chat = (
        json.loads(explain("--url", url, "--prompt", "hello", "--json", *flag).stdout)
        for flag in ((), ("--chat",))
    )
    assert chat["prompt_tokens"] > plain["prompt_tokens"]


def test_the_json_is_the_servers_answer(url: str) -> None:
    assert json.loads(explain("--url", url, "--json").stdout) is None
    complete(url)
    account = json.loads(explain("--url", url, "--json").stdout)
    assert (account["number"], account["plan"], account["miss"]["cause"]) == (0, None, "never stored")


def test_a_server_that_asks_for_a_token_gets_it_from_the_environment(url: str) -> None:
    line = one_line(explain("--url", url, token=None), 1)
    assert line == f"the server at {url} asks for its token: set PREFIXD_TOKEN, or give --token-file"
    assert "does not know the token" in one_line(explain("--url", url, token="wrong"), 1)


def test_a_prompt_that_the_server_refuses_is_one_line(url: str) -> None:
    assert one_line(explain("--url", url, "--prompt", "x" * 100_000), 1).startswith(
        f"the server at {url} refuses: prompt: at least "
    )


def test_a_server_that_cannot_be_reached_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    line = f"no server answers at {url}: start one with 'prefixd serve', or name it with --url"
    assert one_line(explain("--url", url), 1) == line
    assert one_line(explain("--url", url.replace("//", "//me:hush@")), 1) == line


@contextmanager
def foreign_server(answer: bytes, status: int = 200) -> Iterator[str]:
    """Serve ``answer`` to everybody, as no prefixd server would."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        do_POST = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("answer", "status"), [(b"<html>", 200), (b"[]", 200), (b"{}", 200), (b"{}", 404)])
@pytest.mark.parametrize("arguments", [(), ("--prompt", "x")])
def test_what_is_no_prefixd_server_is_one_line(
    answer: bytes, status: int, arguments: tuple[str, ...]
) -> None:
    with foreign_server(answer, status) as url:
        assert "is no prefixd server" in one_line(explain("--url", url, *arguments), 1)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--prompt", "a", "--file", "b"), "prompt: give either --prompt or --file"),
        (("--chat",), "chat: belongs to a prompt; give --prompt or --file"),
        (("--salt", "a"), "salt: belongs to a prompt; give --prompt or --file"),
        (("--adapter", "a"), "adapter: belongs to a prompt; give --prompt or --file"),
        (("--file", "/nowhere/at/all"), "file: cannot read /nowhere/at/all: No such file or directory"),
        (("--url", "nonsense"), "url: 'nonsense' is no URL such as http://127.0.0.1:8000"),
        (("--url", "http://a:b"), "url: 'http://a:b' is no URL such as http://127.0.0.1:8000"),
        (("--url", "http://me:hush@a:b"), "url: 'http://a:b' is no URL such as"),
        (("--prompt", "\udcff"), "prompt: is not UTF-8 text"),
        (("--prompt", "a", "--salt", "\udcff"), "salt: is not UTF-8 text"),
    ],
)
def test_flags_that_cannot_be_used_are_one_line_and_code_2(arguments: tuple[str, ...], line: str) -> None:
    assert one_line(explain(*arguments), 2).startswith(line)


def test_an_account_shows_the_alternatives_and_what_was_missing() -> None:
    account = {
        "number": 7, "ended_at": 100.0, "ended": "stop", "mode": "serve", "prompt_tokens": 1975,
        "tokens_by_source": {"computed": 951, "disk": 1024}, "ttft_s": 0.7, "reason": "both at once",
        "plan": {
            "policy": "measured", "chosen": "both", "tokens_by_tier": {"disk": 1968},
            "predicted_ttft_s": 0.61, "if_computed_s": 1.2, "if_loaded_s": 0.9, "actual_s": 0.63,
        },
        "miss": {"sentence": "block 124, from token 1968 on, was evicted to make room (tier disk)"},
    }  # fmt: skip
    assert account_text(account, now_s=102.5).splitlines() == [
        "request 7, ended 2.5 s ago (stop): 1975 tokens, mode serve, policy measured",
        "",
        "  both at once",
        "",
        "                                           first token after",
        "  chosen: compute the head, load the tail             610 ms",
        "  compute everything                                   1.2 s",
        "  load all that can be loaded                         900 ms",
        "  measured                                            630 ms",
        "",
        "tokens came from: 951 computed, 1024 disk",
        "could be loaded:  1968 disk",
        "first token:      700 ms after submission",
        "first miss: block 124, from token 1968 on, was evicted to make room (tier disk)",
    ]


def rows_of(plan: dict[str, Any], mode: str = "serve") -> list[str]:
    figures = {"policy": "p", "predicted_ttft_s": 1.0, "if_computed_s": 2.0, "if_loaded_s": 3.0}
    explained = {
        "mode": mode, "prompt_tokens": 40, "block_tokens": 16, "reason": "so", "blocks": [], "costs": {},
        "miss": None, "plan": {**figures, **plan},
    }  # fmt: skip
    return [
        " ".join(line.split()) for line in explanation_text(explained).splitlines() if line.endswith(" s")
    ]


def test_alternatives_are_shown_once_and_only_where_they_are_any() -> None:
    computed, loaded = "compute everything", "load all that can be loaded"
    assert rows_of({"chosen": "load", "tokens_by_tier": {"disk": 16}}) == [
        f"chosen: {loaded} 1 s",
        f"{computed} 2 s",
    ]
    assert rows_of({"chosen": "compute", "tokens_by_tier": {"disk": 16}}) == [
        f"chosen: {computed} 1 s",
        f"{loaded} 3 s",
    ]
    assert len(rows_of({"chosen": "compute", "tokens_by_tier": {"device": 16}})) == 1


@pytest.mark.parametrize("mode", ["off", "observe"])
def test_what_is_not_loaded_is_not_said_to_be_chosen(mode: str) -> None:
    plan = {"chosen": "load", "tokens_by_tier": {"disk": 16}}
    assert rows_of(plan, mode)[0] == "mode serve: load all that can be loaded 1 s"


def test_an_explanation_shows_where_blocks_are_and_what_loads_cost() -> None:
    explained = {
        "mode": "serve", "prompt_tokens": 40, "block_tokens": 16, "reason": "loading is fastest",
        "plan": {
            "policy": "measured", "chosen": "load", "tokens_by_tier": {"disk": 16},
            "predicted_ttft_s": 0.1, "if_computed_s": 0.2, "if_loaded_s": 0.1,
        },
        "blocks": [
            {"first_block": 0, "num_blocks": 1, "tier": "disk", "choice": "load"},
            {"first_block": 1, "num_blocks": 1, "tier": None, "choice": "compute"},
        ],
        "costs": {"disk": {"latency_s": 0.02, "bytes_per_s": 2e9, "queue_s": 0.5}},
        "miss": None,
    }  # fmt: skip
    assert explanation_text(explained).splitlines()[-4:] == [
        "found: 16 disk",
        "  tokens 0 to 15: disk, load",
        "  tokens 16 to 31: nowhere, compute",
        "disk: 20 ms, then 2 GB/s, 500 ms for what is on its way",
    ]
