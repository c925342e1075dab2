"""The page about the administration: its examples do what it says."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.api.admin_rig import Rig, admin_rig, namespace_of

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "admin.md").read_text()
EXAMPLES = re.findall(r"^\$ (curl .*)$", PAGE, re.MULTILINE)


class Curl(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None
    file: str | None


def curl(example: str, names: dict[str, str]) -> Curl:
    """Return what a command sends, with ``names`` in place of the shell's variables."""
    for name, value in {"URL": "", "JSON": "Content-Type: application/json", **names}.items():
        example = example.replace(f"${name}", value)
    words = iter(shlex.split(example)[1:])
    method, path, body, file, headers = None, "", None, None, dict[str, str]()
    for word in words:
        if word == "-X":
            method = next(words)
        elif word == "-H":
            name, _, value = next(words).partition(": ")
            headers[name] = value
        elif word in {"-d", "--data-binary"}:
            body = next(words).encode()
        elif word == "-o":
            file = next(words)
        elif word != "-s":
            path = word
    return Curl(method or ("GET" if body is None else "POST"), path, headers, body, file)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with admin_rig(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


def test_every_example_is_served(rig: Rig) -> None:
    files: dict[str, bytes] = {}
    asked = set()
    for example in EXAMPLES:
        key = rig.keep("")[0]
        names = {"KEY": key, "DIGEST": namespace_of("").digest.hex(), "JOB": a_job(rig)}
        sent = curl(example, names)
        body = files[sent.body.decode()[1:]] if sent.body and sent.body.startswith(b"@") else sent.body
        answer = rig.call("operator", sent.method, sent.path, headers=sent.headers, content=body)
        code = None if answer.is_success else answer.json()["error"]["code"]
        assert code in {None, "needs_model"}, (example, answer.text)
        if sent.file:
            files[sent.file] = answer.content
        asked.add(f"{sent.method} {described(rig, sent.path)}")
    told = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`]+)`", PAGE, re.MULTILINE))
    assert told - asked == set()


def test_every_prompt_of_an_example_has_a_whole_block() -> None:
    selections = [
        json.loads(sent.body or b"")["selection"]
        for sent in map(plain, EXAMPLES)
        if sent.body and b"selection" in sent.body
    ]
    prompts = [selection["prompt"] for selection in selections if "prompt" in selection]
    assert prompts
    assert all(len(prompt.split()) >= 16 for prompt in prompts), "a shorter one may be refused"


def test_pins_have_a_budget_before_something_is_pinned() -> None:
    sent = [(each.method, each.path) for each in map(plain, EXAMPLES)]
    assert sent.index(("PUT", "/admin/quotas/others")) < sent.index(("POST", "/admin/pins"))


def plain(example: str) -> Curl:
    return curl(example, {"KEY": "0f", "DIGEST": "0f", "JOB": "0f"})


def a_job(rig: Rig) -> str:
    """Return the number of a job that has ended: the one before is through by then, too."""
    job = rig.ok("operator", "POST", "/admin/verify", json={"selection": {"filter": {"min_age_s": 1e6}}})
    return str(rig.ended("operator", job["id"])["id"])


def described(rig: Rig, path: str) -> str:
    """Return the route that serves a path, as the description has it."""
    plain = path.partition("?")[0]
    if plain in rig.app.openapi()["paths"]:
        return plain
    templates = (one for one in rig.app.openapi()["paths"] if "{" in one)
    return str(next(one for one in templates if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", one), plain)))


def test_the_console_examples_are_valid_json() -> None:
    bodies = [sent.body for sent in (curl(example, {"KEY": "0f" * 16}) for example in EXAMPLES) if sent.body]
    for body in bodies:
        if not body.startswith(b"@"):
            json.loads(body)
