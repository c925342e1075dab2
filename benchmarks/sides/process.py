"""A side of a benchmark in a process and an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent.parent
_STOP_S = 30.0


class Side:
    """One side, which answers what it is asked."""

    def __init__(self, name: str, dtype: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self.dtype = dtype
        self._process = process

    def ask(self, do: str, **arguments: Any) -> Any:
        """Let the side do something and return what comes of it."""
        if self._process.stdin is None:
            raise SystemExit(f"{self.name} cannot be asked")
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()
        return self.result()

    def result(self) -> Any:
        """Wait for the side's next line."""
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            told = f" in {self.dtype}" if self.dtype else ""
            raise SystemExit(f"{self.name}{told} has ended; see what it says with --verbose")
        return json.loads(line)["result"]


@contextmanager
def started(
    name: str,
    dtype: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    is_verbose: bool,
) -> Iterator[Side]:
    """Run ``command`` (a python, and a module below ``benchmarks.sides`` with its words) as a side."""
    python, module, *words = command
    process = subprocess.Popen(
        [python, "-m", f"benchmarks.sides.{module}", *words],
        cwd=REPOSITORY,
        env={"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), **os.environ, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if is_verbose else subprocess.DEVNULL,
        text=True,
    )
    try:
        yield Side(name, dtype, process)
    finally:
        if process.stdin:
            process.stdin.close()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
