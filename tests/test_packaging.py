import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
ROOMS = {"kvstore", "backends", "engine_adapter", "policies", "api"}

PUT_AND_GET = """
from hashlib import sha256
from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU

arena = Arena(1 << 20)
host = TierSpec(TierConfig("host", 1 << 20), HostBackend(arena), LeafFirstLRU(), whole_blocks_that_fit)
store = TieredStore([host], arena)
space = Namespace(sha256(b"weights").hexdigest(), "{}", "float32", "float32", block_tokens=4)
key, = chain_keys(space.digest, [1, 2, 3, 4], 4)
store.put(space, key, b"", memoryview(b"kv" * 2048))
out = bytearray(4096)
print(store.get_into(key, memoryview(out)), bytes(out) == b"kv" * 2048)
store.close()
"""


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and the wheel from what the sdist holds."""
    folder = tmp_path_factory.mktemp("dist")
    build("sdist", REPOSITORY, folder)
    (sdist,) = folder.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "source", filter="data")
    build("wheel", next((folder / "source").iterdir()), folder)
    return folder


def build(target: str, source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)


@pytest.fixture(scope="module")
def clean_python(distributions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into an environment that has nothing else but what the base install names."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    (wheel,) = distributions.glob("*.whl")
    subprocess.run(
        [sys.executable, "-m", "uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel],
        check=True,
        capture_output=True,
    )
    copy_installed("xxhash", next(folder.glob("lib/python*/site-packages")))
    return python


def copy_installed(package: str, site_packages: Path) -> None:
    for file in distribution(package).files or []:
        if ".." not in file.parts:
            target = site_packages / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def run(*command: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_wheel_holds_the_rooms_and_what_they_need(distributions: Path) -> None:
    (wheel,) = distributions.glob("prefixd-*-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {*ROOMS, "prefixd.py"}
    assert {f"{room}/py.typed" for room in ROOMS} <= set(names)
    assert {"api/demo/document.txt", "api/ui/page.html"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    metadata = zipfile.ZipFile(wheel).read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "License-Expression: Apache-2.0" in metadata
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    assert [line for line in needed if "extra ==" not in line] == ["Requires-Dist: xxhash>=3.4"]


def test_the_sdist_holds_what_the_tests_and_the_documentation_need(distributions: Path) -> None:
    (sdist,) = distributions.glob("prefixd-*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "requirements.lock", "Makefile", "README.md", "LICENSE"} <= names
    assert {"tests/test_packaging.py", "docs/index.md", "kvstore/store.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".git/", ".mypy_cache"))]


def test_the_base_install_stores_and_finds_a_block(clean_python: Path, tmp_path: Path) -> None:
    done = run(clean_python, "-c", PUT_AND_GET, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_the_command_says_which_extra_it_is_missing(clean_python: Path, tmp_path: Path) -> None:
    done = run(clean_python.with_name("prefixd"), "version", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.endswith("is not installed: pip install 'prefixd[service]'\n")


def test_every_module_of_the_store_and_the_policies_imports_with_the_base_install(
    clean_python: Path, tmp_path: Path
) -> None:
    modules = [
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts)
        for room in ("kvstore", "policies")
        for path in sorted((REPOSITORY / room).glob("*.py"))
    ]
    done = run(clean_python, "-c", f"import {', '.join(modules)}", folder=tmp_path)
    assert done.stderr == ""
