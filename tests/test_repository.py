"""Rules of the house that no linter knows."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCES = ("prefixd.py", "kvstore", "backends", "policies", "engine_adapter", "api", "benchmarks")
MAX_LINES = 300

# Written in pieces, so that this file keeps the rules it checks.
FOREIGN = {
    "a registry's host": re.compile(r"(pypi|pythonhosted|npmjs|debian|ubuntu|crates|anaconda)\.(org|com|io)"),
    "an index option": re.compile(r"--(extra-)?index-url|--find-links|--trusted-host"),
    "a path of one machine": re.compile(r"(?<![\w.~/-])/(work|root|opt|home|Users)/\w"),
    "a private key": re.compile("BEGIN [A-Z ]*PRIVATE " + "KEY"),
}


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY, capture_output=True, check=True, text=True,
    )  # fmt: skip
    return [path for name in listed.stdout.split("\0") if name and (path := REPOSITORY / name).is_file()]


def sources() -> list[Path]:
    return [
        path
        for path in tracked_files()
        if path.suffix == ".py" and path.relative_to(REPOSITORY).parts[0] in SOURCES
    ]


def lines_of(paths: list[Path]) -> Iterator[tuple[str, str]]:
    for path in paths:
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), start=1):
            yield f"{path.relative_to(REPOSITORY)}:{number}", line


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(what: str) -> None:
    files = [path for path in tracked_files() if path != Path(__file__) and path.name != "LICENSE"]
    assert [place for place, line in lines_of(files) if FOREIGN[what].search(line)] == []


def test_nothing_is_pickled() -> None:
    pickling = re.compile(r"\b(pickle|cPickle|dill|joblib|cloudpickle|marshal|shelve)\b|torch\.(save|load)\(")
    assert [place for place, line in lines_of(sources()) if pickling.search(line)] == []


def test_every_ignore_names_its_rule_and_its_reason() -> None:
    ignore = re.compile(r"# (ruff: )?noqa|# type: ignore")
    reasoned = re.compile(r"# (noqa: [A-Z]+\d+(, [A-Z]+\d+)*|type: ignore\[[\w, -]+\]) +([#-] )?\w+")
    found = [(place, line) for place, line in lines_of(sources()) if ignore.search(line)]
    assert [place for place, line in found if not reasoned.search(line)] == []


def test_every_rule_switched_off_for_all_has_its_reason() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    lint = tomllib.loads(text)["tool"]["ruff"]["lint"]
    switched_off = [*lint["ignore"], *(rule for rules in lint["per-file-ignores"].values() for rule in rules)]
    for rule in switched_off:
        assert re.search(rf'"{rule}", +# \w+', text), rule


def test_source_files_are_short() -> None:
    long = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in sources()}
    assert {path: lines for path, lines in long.items() if lines > MAX_LINES} == {}


def test_nothing_is_left_for_later() -> None:
    later = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    assert [place for place, line in lines_of(sources()) if later.search(line)] == []


def test_test_files_have_names_of_their_own() -> None:
    names = [path.name for path in (REPOSITORY / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_the_lock_pins_what_the_project_needs_and_no_cuda_package() -> None:
    lock = (REPOSITORY / "requirements.lock").read_text()
    pinned = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    wanted += [
        package
        for extra in ("engine", "constrained", "service", "redis", "plot")
        for package in extras[extra]
    ]
    assert {re.split(r"[^a-z0-9-]", requirement)[0] for requirement in wanted} <= pinned
    assert not [name for name in pinned if name.startswith(("nvidia", "triton", "cuda"))]


def test_every_engine_with_a_folder_is_tried_with_exact_versions() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    tried = re.findall(r"^ENGINES := (.*)$", makefile, re.MULTILINE)[0].split()
    folders = [path.parent for path in tracked_files() if path.match("tests/engines/*/requirements.txt")]
    assert sorted(tried) == sorted(folder.name for folder in folders)
    for folder in folders:
        lines = (folder / "requirements.txt").read_text().splitlines()
        assert [line for line in lines if line[:1] not in {"", "#"} and "==" not in line] == []
