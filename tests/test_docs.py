import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from api.cli import build_cli
from engine_adapter.engine.support import SUPPORTED_ARCHITECTURES

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


def python_in(page: str) -> str:
    return "\n".join(PYTHON_BLOCK.findall((REPOSITORY / page).read_text()))


def run_python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_imports_in_examples_resolve(page: Path) -> None:
    for node in ast.walk(ast.parse(python_in(name_of(page)))):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_page_is_in_the_index() -> None:
    index = (REPOSITORY / "docs" / "index.md").read_text()
    pages = {page.name for page in PAGES if page.parent.name == "docs"} - {"index.md"}
    assert {name for name in pages if f"({name})" not in index} == set()


def test_every_family_that_is_served_is_documented() -> None:
    page = (REPOSITORY / "docs" / "models.md").read_text().partition("## What is refused")[0]
    assert {name for name in SUPPORTED_ARCHITECTURES if f"`{name}`" not in page} == set()


ENGINES = sorted(pins.parent.name for pins in REPOSITORY.glob("tests/engines/*/requirements.txt"))


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_is_in_the_table_of_what_is_compatible(engine: str) -> None:
    pins = (REPOSITORY / "tests" / "engines" / engine / "requirements.txt").read_text()
    (version,) = re.findall(rf"^{engine}(?:-cpu)?==(\S+)$", pins, re.MULTILINE)
    page = (REPOSITORY / "docs" / "compatibility.md").read_text()
    (name,) = re.findall(
        rf"^\| \[(.+)\]\(#{engine}\) \| {re.escape(version)} \| `make test-{engine}` \|$", page, re.MULTILINE
    )
    told = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f"]({engine}.md)" in told
    rows = re.findall(r"^\| ([a-z ]+) \| .{9,} \|$", told, re.MULTILINE)
    assert rows == ["works", "not yet run", "does not work"]


def test_every_engine_has_its_command() -> None:
    (named,) = re.findall(r"^ENGINES := (.+)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    assert named.split() == ENGINES


def commands_of(command: Any, name: str = "") -> Iterator[str]:
    if not hasattr(command, "commands"):
        yield name.strip()
    for part, below in getattr(command, "commands", {}).items():
        yield from commands_of(below, f"{name} {part}")


def test_every_command_is_documented() -> None:
    commands = set(commands_of(typer.main.get_command(build_cli())))
    page = (REPOSITORY / "docs" / "commands.md").read_text()
    assert set(re.findall(r"^\| `prefixd ([a-z ]+)`", page, re.MULTILINE)) == commands


def test_the_readmes_example_runs_and_prints_what_it_says(tmp_path: Path) -> None:
    example = python_in("README.md")
    done = run_python("-c", example, folder=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == re.findall(r"^print\(.*  # (.*)$", example, re.MULTILINE)
    assert (tmp_path / "blocks").is_dir()


def test_the_example_in_a_transformers_script_runs_and_reuses(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(python_in("docs/transformers.md"))
    ran = run_python("example.py", folder=tmp_path)
    assert ran.stdout.strip() == "48 tokens were not computed again", ran.stderr


@pytest.mark.parametrize("page", ["docs/pins.md", "docs/operating.md"])
def test_the_examples_with_a_store_print_what_they_say(page: str, tmp_path: Path) -> None:
    example = PYTHON_BLOCK.findall((REPOSITORY / page).read_text())[0]
    done = run_python("-c", example, folder=tmp_path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*  # (.*)$", example, re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/backends.md", "docs/policies.md"])
def test_the_examples_for_plugin_authors_pass_their_conformance_suite(page: str, tmp_path: Path) -> None:
    (tmp_path / "test_example.py").write_text(python_in(page))
    done = run_python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_example.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout)
