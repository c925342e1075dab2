from __future__ import annotations

from pathlib import Path

from backends.builtin import register_builtin
from backends.byte_planes import BytePlanes
from backends.disk import DiskBackend
from backends.host import HostBackend
from kvstore.arena import Arena
from kvstore.registry import Kind, Registry


def test_the_built_in_backends_are_made_by_name(tmp_path: Path) -> None:
    registry = Registry()
    register_builtin(registry)
    assert {"disk", "host"} <= set(registry.names(Kind.BACKEND))
    assert isinstance(registry.get(Kind.BACKEND, "host")(arena=Arena(0)), HostBackend)
    disk = registry.get(Kind.BACKEND, "disk")(path=tmp_path)
    assert isinstance(disk, DiskBackend)
    disk.close()


def test_the_built_in_codec_is_made_by_name() -> None:
    registry = Registry()
    register_builtin(registry)
    assert "zstd-planes" in registry.names(Kind.CODEC)
    assert isinstance(registry.get(Kind.CODEC, "zstd-planes")(item_bytes=2), BytePlanes)
