"""Fixtures that more than one room uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.folders import cache_folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, a real model; the first use on a machine converts it."""
    from engine_adapter.engine.convert import smollm2_folder  # noqa: PLC0415 - torch, for those who ask

    return smollm2_folder(cache_folder())
