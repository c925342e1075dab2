from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backends import redis_layout as layout
from backends import redis_manifests
from backends.redis_backend import RedisBackend
from backends.redis_layout import MANIFESTS, PART_BYTES, header_name, part_name
from kvstore.clock import Clock
from kvstore.conformance.amending import AmendingConformance
from kvstore.conformance.frames import get, make_header, make_key, make_payload, put
from kvstore.conformance.streaming import StreamingConformance
from kvstore.frame import HEADER_BYTES, Expiry, Header, checksum
from kvstore.seams import SharedMedium, Streaming, Want
from tests.valkey import Valkey


class RedisConformance(AmendingConformance, StreamingConformance):
    @pytest.fixture(autouse=True)
    def _server(self, valkey: Valkey) -> None:
        self.server = valkey

    def make_backend(self, tmp_path: Path) -> RedisBackend:  # noqa: ARG002 - its medium is the server
        return self.server.backend()

    @contextmanager
    def break_medium(self, backend: object) -> Iterator[None]:  # noqa: ARG002 - its medium is the server
        self.server.admin().config_set("maxmemory", 1)
        yield
        self.server.admin().config_set("maxmemory", 0)


class TestBlocksOfOnePart(RedisConformance):
    pass


class TestBlocksOfSeveralParts(RedisConformance):
    block_bytes = 2 * PART_BYTES + 7


@pytest.fixture
def redis(valkey: Valkey) -> Iterator[RedisBackend]:
    with closing(valkey.backend()) as redis:
        yield redis


def names_in(valkey: Valkey) -> set[bytes]:
    return set(valkey.admin().keys())  # type: ignore[arg-type]  # a list, since the client waits


def put_with_expiry(redis: RedisBackend, key: bytes, payload: bytes, expiry: Expiry) -> None:
    header = replace(make_header(key, payload), expiry=expiry)
    redis.put(key, memoryview(header.pack()), memoryview(payload))


def wants(keys: Iterable[bytes], nbytes: int) -> list[Want]:
    return [Want(key, memoryview(bytearray(HEADER_BYTES)), memoryview(bytearray(nbytes))) for key in keys]


# Keys and parts


def test_a_frame_is_a_header_and_parts_of_at_most_a_mebibyte_in_one_slot(
    valkey: Valkey, redis: RedisBackend
) -> None:
    key, payload = make_key("a"), make_payload("a", 2 * PART_BYTES + 5)
    header = put(redis, key, payload)
    block = b"prefixd:1:{%b}" % key.hex().encode()
    names = [block, block + b":0", block + b":1", block + b":2"]
    assert names_in(valkey) == set(names)
    stored = valkey.admin().mget(names)
    assert stored == [header.pack(), payload[:PART_BYTES], payload[PART_BYTES:-5], payload[-5:]]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_case_8_a_block_without_one_of_its_parts_is_a_miss(
    valkey: Valkey, redis: RedisBackend, lost: int
) -> None:
    key, payload = make_key("a"), make_payload("a", 2 * PART_BYTES + 5)
    put(redis, key, payload)
    valkey.admin().delete(part_name(key, lost))
    assert get(redis, key, len(payload)) is None
    assert redis.stats().occupied_bytes == 0, "nobody counts on it any more"


def test_case_8_a_block_without_its_header_is_a_miss(valkey: Valkey, redis: RedisBackend) -> None:
    put(redis, make_key("a"), make_payload("a", 5000))
    valkey.admin().delete(header_name(make_key("a")))
    assert get(redis, make_key("a"), 5000) is None
    assert redis.resident([make_key("a")]) == [None]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("nbytes", [0, 1, PART_BYTES - 1, PART_BYTES + 1])
def test_a_part_of_another_length_is_a_miss_and_what_follows_is_read(
    valkey: Valkey, redis: RedisBackend, number: int, nbytes: int
) -> None:
    key, payload = make_key("a"), make_payload("a", PART_BYTES + 5)
    put(redis, key, payload)
    put(redis, make_key("b"), payload)
    valkey.admin().set(part_name(key, number), bytes(nbytes))
    lengths = list(redis.get_each(wants([key, make_key("b")], len(payload))))
    assert lengths == [None, len(payload)]


def test_a_block_stored_again_in_fewer_parts_leaves_none_of_the_old_ones(
    valkey: Valkey, redis: RedisBackend
) -> None:
    key, payload = make_key("a"), make_payload("a", 3 * PART_BYTES)
    put(redis, key, payload)
    short = payload[: PART_BYTES // 2]  # as a codec would make of it
    header = replace(make_header(key, short), raw_bytes=len(payload))
    redis.put(key, memoryview(header.pack()), memoryview(short))
    assert names_in(valkey) == {header_name(key), part_name(key, 0)}
    (want,) = wants([key], len(payload))
    assert redis.get_into(*want) == len(short)
    assert want.payload[: len(short)] == short


def test_a_block_that_another_process_stored_is_removed_with_all_its_parts(
    valkey: Valkey, redis: RedisBackend
) -> None:
    key = make_key("a")
    put(redis, key, make_payload("a", 3 * PART_BYTES))
    with closing(valkey.backend()) as other:
        assert other.resident([key]) != [None]
        other.delete(key)
    assert names_in(valkey) == set()


def test_case_5_a_write_that_ends_before_its_last_command_stores_nothing(valkey: Valkey) -> None:
    key, payload = make_key("a"), make_payload("a", 2 * PART_BYTES + 5)
    header = make_header(key, payload).pack()
    pieces = layout.store(key, memoryview(header), memoryview(payload), len(payload), 0)
    with socket.socket(socket.AF_UNIX) as writer, writer.makefile("rb") as replies:
        writer.connect(str(valkey.socket))
        writer.sendall(b"".join(pieces[:-1]))
        assert [replies.readline() for _ in range(5)] == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 4]
        assert names_in(valkey) == set()
    assert names_in(valkey) == set()


# Expiry


def test_header_and_parts_expire_at_the_same_moment(valkey: Valkey, redis: RedisBackend) -> None:
    at_ms = time.time_ns() // 1_000_000 + 60_000
    key, payload = make_key("a"), make_payload("a", PART_BYTES + 5)
    put_with_expiry(redis, key, payload, Expiry(soft_ms=at_ms + 9000, hard_ms=at_ms))
    names = [header_name(key), part_name(key, 0), part_name(key, 1)]
    assert [valkey.admin().pexpiretime(name.decode()) for name in names] == [at_ms] * 3
    put(redis, key, payload)
    assert [valkey.admin().pexpiretime(name.decode()) for name in names] == [-1] * 3, "no end"


def test_the_server_removes_all_of_a_block_whose_time_is_over(valkey: Valkey, redis: RedisBackend) -> None:
    key, payload = make_key("a"), make_payload("a", PART_BYTES + 5)
    put_with_expiry(redis, key, payload, Expiry(soft_ms=time.time_ns() // 1_000_000 + 150))
    assert get(redis, key, len(payload)) is not None
    valkey.wait_until_expired(header_name(key), part_name(key, 0), part_name(key, 1))
    assert get(redis, key, len(payload)) is None


def test_a_block_whose_time_is_over_by_our_clock_is_a_miss(valkey: Valkey) -> None:
    now_ms = time.time_ns() // 1_000_000
    clock = Clock(wall_ms=lambda: now_ms)
    with closing(valkey.backend(clock=clock)) as redis:
        key, payload = make_key("a"), make_payload("a", 5000)
        put_with_expiry(redis, key, payload, Expiry(soft_ms=now_ms + 60_000))
        assert get(redis, key, 5000) == payload
        assert redis.resident([key]) != [None]
        now_ms += 60_000
        assert get(redis, key, 5000) is None
        assert redis.resident([key]) == [None]


# Several at once


def test_several_blocks_arrive_in_order_each_in_its_own_buffer(redis: RedisBackend) -> None:
    assert isinstance(redis, Streaming)
    names = ["a", "absent", "b", "c", "also absent"]
    payloads = {name: make_payload(name, 5000) for name in ("a", "b", "c")}
    for name, payload in payloads.items():
        put(redis, make_key(name), payload)
    asked = wants(map(make_key, names), 8192)
    lengths = list(redis.get_each(asked))
    assert lengths == [5000, None, 5000, 5000, None]
    for name, want, length in zip(names, asked, lengths, strict=True):
        if length is not None:
            assert Header.unpack(want.header).key == make_key(name)
            assert want.payload[:length] == payloads[name]


def test_a_long_prompt_is_asked_for_bit_by_bit_and_arrives(valkey: Valkey, redis: RedisBackend) -> None:
    payload = make_payload("a", PART_BYTES)
    keys = [make_key(number) for number in range(24)]
    for key in keys:
        put(redis, key, payload)
    (want,) = wants(keys[:1], PART_BYTES)
    lengths = []
    for length in redis.get_each([want._replace(key=key) for key in keys]):
        lengths.append(length)
        assert checksum(want.payload) == checksum(payload)
    assert lengths == [PART_BYTES] * 24


def test_blocks_nobody_waits_for_any_more_cost_a_connection_and_nothing_else(
    valkey: Valkey, redis: RedisBackend
) -> None:
    for name in "abc":
        put(redis, make_key(name), make_payload(name, 5000))
    arriving = redis.get_each(wants(map(make_key, "abc"), 5000))
    assert next(arriving) == 5000
    arriving.close()  # type: ignore[attr-defined]  # it is a generator
    assert get(redis, make_key("b"), 5000) == make_payload("b", 5000)


def test_nothing_asked_is_nothing_told(redis: RedisBackend) -> None:
    assert list(redis.get_each([])) == []
    assert redis.resident([]) == []


def test_the_residency_of_a_prompt_is_told_by_its_headers(valkey: Valkey, redis: RedisBackend) -> None:
    assert isinstance(redis, SharedMedium)
    keys = [make_key(number) for number in range(3000)]
    headers = {key: put(redis, key, b"payload") for key in keys[::3]}
    assert redis.resident(keys) == [headers.get(key) for key in keys]


def test_what_is_no_header_of_that_key_is_not_resident(valkey: Valkey, redis: RedisBackend) -> None:
    a, b, c = (make_key(name) for name in "abc")
    put(redis, a, b"payload")
    valkey.admin().set(header_name(b), valkey.admin().get(header_name(a)) or b"")
    valkey.admin().set(header_name(c), bytes(100_000))
    assert redis.resident([c, b, a])[:2] == [None, None]
    assert redis.resident([a]) != [None]


# Manifests and facts


def test_manifests_of_all_who_share_the_server_are_read_back(valkey: Valkey, redis: RedisBackend) -> None:
    with closing(valkey.backend()) as other:
        other.put_manifest(b"\x01" * 16, '{"label": "theirs"}')
        redis.put_manifest(b"\x02" * 16, '{"label": "ours"}')
        redis.put_manifest(b"\x02" * 16, '{"label": "ours, again"}')
        assert sorted(other.manifests()) == ['{"label": "ours, again"}', '{"label": "theirs"}']
    assert 0 < valkey.admin().ttl(MANIFESTS) <= 30 * 86_400


def test_manifests_never_grow_without_end(redis: RedisBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_manifests, "_MOST", 4)
    for number in range(12):
        redis.put_manifest(bytes([number]) * 16, str(number))
    left = list(redis.manifests())
    assert len(left) == 4
    assert "11" in left


def test_statistics_tell_what_a_person_wants_to_know(valkey: Valkey, redis: RedisBackend) -> None:
    facts = redis.stats().facts
    assert facts["server"] == f"unix://{valkey.socket}?db=0"
    assert facts["version"].startswith("valkey ")
    assert facts["maxmemory_policy"] == "noeviction"
    assert facts["role"] == "master"
    assert int(facts["used_memory_bytes"]) > 0


def test_over_tcp_and_in_another_database(valkey: Valkey) -> None:
    with closing(valkey.backend(f"{valkey.url}/3")) as redis:
        put(redis, make_key("a"), make_payload("a", 70_000))
        assert get(redis, make_key("a"), 70_000) == make_payload("a", 70_000)
        assert valkey.admin().dbsize() == 0
        assert redis.stats().facts["server"] == f"{valkey.url}/3"
