"""Two versions of the service share one disk folder, one after the other, as in a rolling upgrade."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from backends.disk import DiskBackend
from kvstore import frame
from kvstore.arena import Arena
from kvstore.conformance.frames import make_key, make_payload
from kvstore.frame import Header
from kvstore.namespace import Namespace
from kvstore.seams import Codec
from kvstore.store import TieredStore
from kvstore.tier import TierConfig, TierSpec
from policies.admission import whole_blocks_that_fit
from policies.lru import LeafFirstLRU
from tests.eventually import eventually
from tests.kvstore.codecs import ZlibCodec

NAMESPACE = Namespace("weights", "{}", "float32", "float32", block_tokens=16)
BLOCK_BYTES = 8192
FILE_BYTES = 4096 + BLOCK_BYTES


@contextmanager
def store_on(folder: Path, codec: Codec | None = None, num_blocks: int = 64) -> Iterator[TieredStore]:
    """Open a store over ``folder``, with room for ``num_blocks``; it ends as a service does."""
    config = TierConfig("disk", num_blocks * FILE_BYTES)
    spec = TierSpec(config, DiskBackend(folder), LeafFirstLRU(), whole_blocks_that_fit, codec)
    store = TieredStore([spec], Arena(16 * BLOCK_BYTES))
    yield store
    assert store.flush(5.0)
    store.check()
    assert store.statistics().tiers[1].used_bytes == spec.backend.stats().occupied_bytes
    store.close()


def put(store: TieredStore, *names: str) -> None:
    for name in names:
        assert store.put(NAMESPACE, make_key(name), b"", memoryview(make_payload(name, BLOCK_BYTES)))
    assert store.flush(5.0)


def served(store: TieredStore, names: str) -> str:
    """Return which of the blocks ``names`` the store has; their bytes must be the right ones."""
    found = ""
    for name in names:
        out = bytearray(BLOCK_BYTES)
        if store.get_into(make_key(name), memoryview(out)):
            assert out == make_payload(name, BLOCK_BYTES)
            found += name
    return found


@contextmanager
def next_version(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a build of the project whose frame format is the next one."""
    with monkeypatch.context() as patch:
        version = frame.FRAME_VERSION + 1
        patch.setattr(frame, "FRAME_VERSION", version)
        patch.setattr(Header.__init__, "__defaults__", (*(Header.__init__.__defaults__ or ())[:-1], version))
        yield


def test_each_format_version_serves_its_own_blocks_and_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_on(tmp_path) as old:
        put(old, "a", "b")
    with next_version(monkeypatch), store_on(tmp_path) as new:
        assert served(new, "ab") == ""
        put(new, "c")
        assert served(new, "abc") == "c"
    with store_on(tmp_path) as old:
        assert served(old, "abc") == "ab"
        put(old, "d")
    with next_version(monkeypatch), store_on(tmp_path) as new:
        assert served(new, "abcd") == "c"
    (tmp_path / "v1" / "journal").unlink()
    with store_on(tmp_path) as old:
        eventually(lambda: old.statistics().tiers[1].num_blocks == 4)
        assert served(old, "abcd") == "abd"


def test_a_version_that_does_not_know_a_codec_leaves_its_blocks_alone(tmp_path: Path) -> None:
    with store_on(tmp_path, ZlibCodec()) as new:
        put(new, "a", "b")
    with store_on(tmp_path) as old:
        assert served(old, "ab") == ""
        put(old, "c")
        assert old.statistics().tiers[1].counts["corrupt"] == 0
    with store_on(tmp_path, ZlibCodec()) as new:
        assert served(new, "abc") == "abc"


def test_the_other_versions_blocks_make_room_when_the_budget_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store_on(tmp_path) as old:
        put(old, "a", "b", "c")
    with next_version(monkeypatch), store_on(tmp_path, num_blocks=4) as new:
        put(new, "d", "e", "f")
        assert served(new, "def") == "def"
    with store_on(tmp_path, num_blocks=4) as old:
        assert served(old, "abcdef") == "c"
