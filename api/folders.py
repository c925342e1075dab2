"""Where this user's files are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return ``prefixd`` in the user's cache folder, where the XDG convention places it."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "prefixd"


def cost_folder(cache: Path) -> Path:
    """Return where servers keep what steps and loads were found to cost."""
    return cache / "costs"
