"""Lets SGLang be imported where torch is built for a CPU alone; begins engines for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

try:
    import torchvision  # noqa: F401 - whether it can be imported is the question
except RuntimeError:
    # Its wheel is built for CUDA, so its operators are not there. SGLang wants its image transforms alone.
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

from sglang.srt.mem_cache.cpp_utils import native_hash

from engine_adapter.serving_config import SidecarConfig, TierSetup
from engine_adapter.sidecar import Sidecar, open_sidecar
from tests.engines.sglang.rig import Engine, mha_pool, save_model, serve

Begin = Callable[..., Engine]


@pytest.fixture(scope="session", autouse=True)
def _page_hashes() -> Iterator[None]:
    """Where SGLang cannot compile its hash of pages, let an equally opaque one stand in."""
    try:
        native_hash._load_native_hash_module()
        yield
    except RuntimeError:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native_hash, "_load_native_hash_module", lambda: SimpleNamespace(get_hash=_chained))
            yield


def _chained(
    raw: Any, _length: int, _width: int, _is_bigram: bool, prior: bytes | None, page_size: int | None
) -> str | list[str]:
    if page_size is None:
        return sha256((prior or b"") + raw.tobytes()).hexdigest()
    hashes = []
    for start in range(0, len(raw) - page_size + 1, page_size):
        prior = sha256((prior or b"") + raw[start : start + page_size].tobytes()).digest()
        hashes.append(prior.hex())
    return hashes


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return the folder of the model that this process serves."""
    folder = save_model(tmp_path / "model")
    serve(folder)
    return folder


@pytest.fixture
def begin(model: Path, tmp_path: Path) -> Iterator[Begin]:
    """Return a function that begins an engine with settings; all are stopped afterwards."""
    begun: list[Engine] = []

    def engine(pool: Any = None, others: dict[Any, Any] | None = None, **settings: Any) -> Engine:
        known = {"cache_path": str(tmp_path / "cache"), "host_bytes": 1 << 22, "interface_v1": 1}
        begun.append(Engine(pool or mha_pool(), known | settings, others))
        return begun[-1]

    yield engine
    for each in begun:
        each.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Sidecar]:
    """Return a store in a server of its own, at ``address``."""
    socket = tmp_path / "prefixd.sock"
    opened = open_sidecar(SidecarConfig((TierSetup("host", 1 << 24, "lru", "through"),), None, {}, socket))
    yield opened
    opened.close()


@pytest.fixture
def address(server: Sidecar, tmp_path: Path) -> str:
    return f"unix://{tmp_path / 'prefixd.sock'}"
