from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backends.builtin import register_builtin
from backends.byte_planes import BytePlanes
from backends.disk import DiskBackend
from backends.host import HostBackend
from backends.redis_address import RedisAddress
from backends.redis_backend import RedisBackend
from kvstore.arena import Arena
from kvstore.registry import Kind, Registry

REPOSITORY = Path(__file__).parents[2]


WITHOUT_REDIS = """
import sys
sys.modules["redis"] = None
from backends.builtin import redis_backend
from backends.redis_address import RedisAddress
redis_backend(address=RedisAddress.parse("redis://nobody.invalid"))
"""


def test_a_tier_whose_package_is_not_installed_names_the_extra() -> None:
    command = [sys.executable, "-c", WITHOUT_REDIS]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    told = "PluginError: backend 'redis': redis is not installed: pip install 'prefixd[redis]'"
    assert done.stderr.splitlines()[-1].endswith(told)


def test_the_built_in_backends_are_made_by_name(tmp_path: Path) -> None:
    registry = Registry()
    register_builtin(registry)
    assert {"disk", "host"} <= set(registry.names(Kind.BACKEND))
    assert isinstance(registry.get(Kind.BACKEND, "host")(arena=Arena(0)), HostBackend)
    disk = registry.get(Kind.BACKEND, "disk")(path=tmp_path)
    assert isinstance(disk, DiskBackend)
    disk.close()
    redis = registry.get(Kind.BACKEND, "redis")(address=RedisAddress.parse("redis://nobody.invalid"))
    assert isinstance(redis, RedisBackend), "and nobody is asked before it is used"
    redis.close()


def test_the_built_in_codec_is_made_by_name() -> None:
    registry = Registry()
    register_builtin(registry)
    assert {"none", "zstd-planes"} <= set(registry.names(Kind.CODEC))
    assert registry.get(Kind.CODEC, "none")(item_bytes=2) is None
    assert isinstance(registry.get(Kind.CODEC, "zstd-planes")(item_bytes=2), BytePlanes)
