"""Figures in files: found out early whether they can be drawn, and written in one way."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from api.bench.report import check_report_file
from kvstore.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DOTS_PER_INCH = 150


def check_figure_file(file: Path | None) -> None:
    """Find out before anything is done whether a figure can be drawn there. Raises ``ConfigError``."""
    if file is None:
        return
    if file.suffix.lower() not in {".png", ".svg", ".pdf"}:
        raise ConfigError("plot", f"{file} ends in neither .png nor .svg nor .pdf")
    importlib.import_module("matplotlib")
    check_report_file(file, "plot")


def save(figure: Figure, file: Path) -> None:
    """Write a figure. Raises ``ConfigError`` when it cannot be written."""
    from matplotlib import rc_context  # noqa: PLC0415  optional, and slow to import

    try:
        with rc_context({"svg.fonttype": "none"}):  # text stays text
            figure.savefig(file, dpi=_DOTS_PER_INCH)
    except OSError as error:
        raise ConfigError("plot", f"{file} cannot be written: {error.strerror}") from error
