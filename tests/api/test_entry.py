import subprocess
import sys
from pathlib import Path

import pytest

COMMAND_WITHOUT = """
import sys
sys.modules[{package!r}] = None
sys.argv = ["prefixd", *{arguments!r}]
from prefixd import main
main()
"""


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("typer", ["version"], "service"),
        ("uvicorn", ["serve", "--model", "folder"], "service"),
        ("torch", ["serve", "--model", "folder", "--port", "0"], "engine"),
        ("redis", ["bench", "tiers", "--tier", "redis"], "redis"),
        ("gguf", ["version"], None),
    ],
)
def test_a_command_names_the_extra_it_is_missing(
    package: str, arguments: list[str], extra: str | None, tmp_path: Path
) -> None:
    code = COMMAND_WITHOUT.format(package=package, arguments=arguments)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = f"prefixd: {package} is not installed: pip install 'prefixd[{extra}]'\n"
    assert (done.returncode, done.stderr) == ((1, told) if extra else (0, ""))


def test_another_missing_module_is_not_blamed_on_an_extra(tmp_path: Path) -> None:
    code = COMMAND_WITHOUT.format(package="tomllib", arguments=["version"])
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr
    assert "pip install" not in done.stderr
