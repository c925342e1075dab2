"""``prefixd admin`` where a model is served: prompts name their blocks, decisions are shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.assemble import Serving, assemble
from tests.api.admin_command import Commanded, one_line
from tests.api.live import live

PROMPT = "the cat sat on the mat and the dog sat on the cat. " * 4
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def settings(make_settings: Callable[..., Settings]) -> Settings:
    return make_settings(reload_policy="always-load")


@pytest.fixture
def serving(settings: Settings) -> Iterator[Serving]:
    with closing(assemble(serving_config(settings, is_watched=True))) as serving:
        yield serving


@pytest.fixture
def server(serving: Serving, settings: Settings) -> Iterator[Commanded]:
    with live(create_app(serving, settings)) as url:
        yield Commanded(url, serving.store)


def complete(server: Commanded, prompt: str = PROMPT) -> None:
    body = {"model": "tiny-llama", "prompt": prompt, "max_tokens": 2, "ignore_eos": True}
    httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).raise_for_status()


def test_a_prompt_names_its_blocks(server: Commanded, serving: Serving, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text(PROMPT)
    assert server.shown("resolve", "--prompt", PROMPT).startswith("0 of ")
    complete(server)
    serving.engine.flush()
    found = server.answered("resolve", "--file", str(file))
    assert all("host" in block["tiers"] for block in found["data"])
    assert found == server.answered("resolve", "--prompt", PROMPT, "--model", "tiny-llama")
    assert not any(
        block["tiers"] for block in server.answered("resolve", "--prompt", PROMPT, "--salt", "x")["data"]
    )
    evicted = server.answered("evict", "--file", str(file), "--tier", "disk", "--yes")
    assert evicted["result"]["leaves"]["disk"]["blocks"] == len(found["data"])


def test_a_chat_names_its_blocks_as_the_template_writes_it(server: Commanded, tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(CHAT))
    whole = server.answered("resolve", "--messages", str(file))
    one = server.answered("resolve", "--prompt", PROMPT, "--chat")
    plain = server.answered("resolve", "--prompt", PROMPT)
    assert whole["num_tokens"] > one["num_tokens"] > plain["num_tokens"]


def test_what_no_tier_has_of_a_prompt_is_computed(server: Commanded) -> None:
    planned = server.shown("warm", "--prompt", PROMPT, "--dry-run")
    assert "would be computed" in planned
    warmed = server.answered("warm", "--prompt", PROMPT, "--to", "host")
    assert warmed["result"]["computed"] > 0
    assert all("host" in block["tiers"] for block in server.answered("resolve", "--prompt", PROMPT)["data"])


def test_a_prompt_is_pinned(server: Commanded) -> None:
    complete(server)
    server.shown("quota", "unsalted", "--pin", "8MiB")
    pinned = server.answered("pin", "--prompt", PROMPT, "--for", "1h", "--tier", "disk")
    assert pinned["blocks"]["disk"] > 0
    assert server.answered("unpin", "--prompt", PROMPT)["blocks"] == pinned["blocks"]["disk"]


def test_the_mode_is_shown_and_set(server: Commanded) -> None:
    assert server.shown("mode") == "serve\n"
    assert server.shown("mode", "observe") == "observe\n"
    assert "mode        observe" in server.shown("overview")
    server.shown("mode", "serve")
    assert server.run("mode", "always").exit_code == 2


def test_plans_tell_what_was_predicted_and_measured(server: Commanded, serving: Serving) -> None:
    assert server.shown("plans") == "no requests have ended yet\n"
    complete(server)
    serving.engine.flush()
    serving.engine.clear_pool()
    complete(server)
    shown = server.shown("plans").splitlines()
    assert [line.split()[0] for line in shown] == ["request", "1", "0"]
    assert "every block that a tier has is loaded" in shown[1]
    assert server.shown("explain").startswith("request 1, ended ")


def test_shadows_and_the_audit_are_shown_and_its_share_is_set(server: Commanded) -> None:
    complete(server)
    assert "lru (live)" in server.shown("shadows")
    assert "wrong, and quarantined  0" in server.shown("audit")
    assert server.answered("audit", "--share", "0.5")["share"] == 0.5
    assert "2" in one_line(server.run("audit", "--share", "0.5", PREFIXD_URL="http://127.0.0.1:2"), 1)
    assert server.run("audit", "--share", "2").exit_code == 2
