"""Fixtures that more than one room uses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from api.folders import cache_folder

# Threads that wait for each other give the processor away instead of turning on the spot: on a busy
# machine tests are several times as fast. Read when torch is loaded, here and in servers started by tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, a real model; the first use on a machine converts it."""
    from engine_adapter.engine.convert import smollm2_folder  # noqa: PLC0415 - torch, for those who ask

    return smollm2_folder(cache_folder())
