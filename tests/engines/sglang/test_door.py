from importlib.metadata import version

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage


def test_the_door_is_the_one_we_know() -> None:
    assert version("sglang") == "0.5.23"
    assert HiCacheStorage.__abstractmethods__ == {"get", "batch_get", "set", "batch_set", "exists"}
