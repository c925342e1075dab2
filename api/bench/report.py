"""Runs the stages of a benchmark with a progress bar, and writes their figures as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import Progress

from kvstore.errors import ConfigError

Stage = Callable[[], Any]


def run_stages(stages: Mapping[str, Stage]) -> dict[str, Any]:
    """Run every stage in order and return their figures by name; shows progress on stderr."""
    report: dict[str, Any] = {}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(stages))
        for name, stage in stages.items():
            progress.update(task, description=f"measuring {name.replace('_', ' ')}")
            report[name] = stage()
            progress.advance(task)
    return report


def check_report_file(file: Path | None, setting: str = "json") -> None:
    """Raise ``ConfigError``, before anything is measured, when the report could not be written there."""
    if file and (file.is_dir() or not os.access(file.absolute().parent, os.W_OK)):
        raise ConfigError(setting, f"{file} cannot be written; name a file in a folder that can")


@contextmanager
def folder_below(parent: Path, setting: str) -> Iterator[Path]:
    """Make a folder to measure a disk in, and remove it, also after SIGTERM.

    Raises ``ConfigError`` when it cannot be made.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        folder = TemporaryDirectory(dir=parent, prefix="bench-")
    except OSError as error:
        raise ConfigError(setting, f"{parent} cannot be used: {error.strerror}") from error
    with folder as name:
        yield Path(name)


def write_report(report: Mapping[str, Any], json_file: Path | None) -> None:
    """Write the report to ``json_file``, or to stdout. Raises ``ConfigError`` when that cannot be done."""
    text = json.dumps(_rounded(report), indent=2) + "\n"
    if json_file is None:
        sys.stdout.write(text)
        return
    try:
        json_file.write_text(text)
    except OSError as error:
        raise ConfigError("json", f"{json_file} cannot be written: {error.strerror}") from error


def _rounded(value: Any) -> Any:
    """Keep five digits of every measured number."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return value
