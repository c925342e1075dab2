"""What a server can do to a backend: each fault is one line that says what to do, and passes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import pytest
from redis import exceptions as driver

from backends.redis_backend import RedisBackend
from backends.redis_errors import RefusedError, ours
from backends.redis_layout import PART_BYTES, header_name
from kvstore.conformance.amending import ending
from kvstore.conformance.frames import get, make_key, make_payload, put
from kvstore.errors import BackendError, OutOfSpaceError
from kvstore.frame import HEADER_BYTES
from kvstore.seams import Want
from tests.valkey import Valkey

KEY = make_key("a")
PAYLOAD = make_payload("a", 5000)
LATE = "the server does not answer in time: see whether it runs, or raise redis_timeout_s"


@pytest.fixture
def redis(own_valkey: Valkey) -> Iterator[RedisBackend]:
    with closing(own_valkey.backend(timeout_s=0.2)) as redis:
        yield redis


def reason_of(failing: RedisBackend, operation: str) -> str:
    """Return why an operation fails."""
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: get(failing, KEY, 5000),
        "put": lambda: put(failing, KEY, PAYLOAD),
        "delete": lambda: failing.delete(KEY),
        "amend": lambda: failing.amend(KEY, lambda header: header),
        "lookup": lambda: failing.resident([KEY]),
        "put_manifest": lambda: failing.put_manifest(b"\x01" * 16, "{}"),
        "manifests": lambda: list(failing.manifests()),
    }
    with pytest.raises(BackendError) as told:
        calls[operation]()
    assert told.value.operation == operation
    return told.value.reason


OPERATIONS = ("get", "put", "delete", "amend", "lookup", "put_manifest", "manifests")


@pytest.mark.parametrize("url", [None, "tcp"])
def test_a_server_that_is_gone_fails_every_call_and_all_is_well_when_it_is_back(
    own_valkey: Valkey, url: str | None
) -> None:
    with closing(own_valkey.backend(url and own_valkey.url)) as redis:
        put(redis, KEY, PAYLOAD)
        own_valkey.kill()
        for operation in OPERATIONS:
            assert reason_of(redis, operation).startswith("the server cannot be reached: ")
        own_valkey.start()
        assert get(redis, KEY, 5000) is None, "it has lost everything"
        put(redis, KEY, PAYLOAD)
        assert get(redis, KEY, 5000) == PAYLOAD


def test_connections_that_died_while_they_were_idle_are_not_used(
    own_valkey: Valkey, redis: RedisBackend
) -> None:
    put(redis, KEY, PAYLOAD)
    own_valkey.kill()
    own_valkey.start()
    assert get(redis, KEY, 5000) is None, "not a fault"


def test_a_server_that_hangs_is_left_in_time_and_used_again(own_valkey: Valkey, redis: RedisBackend) -> None:
    put(redis, KEY, PAYLOAD)
    own_valkey.stop_answering()
    for operation in OPERATIONS:
        assert reason_of(redis, operation) == LATE
    own_valkey.go_on()
    # A late answer to an earlier question would be another block's: that connection is gone.
    put(redis, make_key("b"), make_payload("b", 5000))
    assert get(redis, make_key("b"), 5000) == make_payload("b", 5000)
    put(redis, KEY, PAYLOAD)
    assert get(redis, KEY, 5000) == PAYLOAD


def test_a_late_answer_is_never_taken_for_another_blocks(own_valkey: Valkey, redis: RedisBackend) -> None:
    put(redis, KEY, PAYLOAD)
    put(redis, make_key("b"), make_payload("b", 5000))
    own_valkey.stop_answering()
    assert reason_of(redis, "get") == LATE
    going_on = threading.Timer(0.05, own_valkey.go_on)
    going_on.start()
    assert get(redis, make_key("b"), 5000) == make_payload("b", 5000)
    going_on.join()


def test_a_large_write_to_a_server_that_hangs_is_left_in_time(
    own_valkey: Valkey, redis: RedisBackend
) -> None:
    put(redis, KEY, PAYLOAD)
    own_valkey.stop_answering()
    with pytest.raises(BackendError, match="does not answer in time"):
        put(redis, KEY, make_payload("a", 8 * PART_BYTES))


def test_a_server_that_dies_in_the_middle_of_several_blocks_is_a_fault_after_those_that_came(
    own_valkey: Valkey, redis: RedisBackend
) -> None:
    payload = make_payload("a", PART_BYTES)
    keys = [make_key(number) for number in range(12)]
    for key in keys:
        put(redis, key, payload)
    out = memoryview(bytearray(PART_BYTES))
    arriving = redis.get_each([Want(key, memoryview(bytearray(HEADER_BYTES)), out) for key in keys])
    assert next(arriving) == PART_BYTES
    assert out == payload
    own_valkey.kill()
    with pytest.raises(BackendError, match="cannot be reached"):
        list(arriving)


def test_case_15_a_full_server_refuses_and_holds_nothing_of_the_block(
    own_valkey: Valkey, redis: RedisBackend
) -> None:
    put(redis, KEY, PAYLOAD)
    own_valkey.admin().config_set("maxmemory", "4mb")
    num_stored = 0
    with pytest.raises(OutOfSpaceError, match="at its maxmemory: raise it, or let it evict"):  # noqa: PT012 - at some step
        while num_stored < 8:
            put(redis, make_key(num_stored), make_payload(num_stored, PART_BYTES + 5))
            num_stored += 1
    assert own_valkey.admin().dbsize() == 2 + 3 * num_stored, "whole blocks alone"
    assert get(redis, KEY, 5000) == PAYLOAD, "reads go on"


def test_a_replica_refuses_writes_and_serves_reads(own_valkey: Valkey, redis: RedisBackend) -> None:
    put(redis, KEY, PAYLOAD)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        own_valkey.admin().replicaof("127.0.0.1", str(nobody.getsockname()[1]))
        for operation in ("put", "delete", "put_manifest"):
            assert reason_of(redis, operation).startswith("the server is a read-only replica: ")
        assert get(redis, KEY, 5000) == PAYLOAD
    own_valkey.admin().replicaof("NO", "ONE")
    put(redis, KEY, PAYLOAD)


def test_a_password_is_wanted_and_checked_and_never_told(own_valkey: Valkey) -> None:
    own_valkey.admin().config_set("requirepass", "swordfish")
    with closing(own_valkey.backend()) as redis:
        for operation in OPERATIONS:
            assert reason_of(redis, operation).startswith("the server wants a password: set redis_pass")
    with closing(own_valkey.backend(password="sawfish")) as redis:
        for operation in OPERATIONS:
            assert reason_of(redis, operation).startswith("the server refuses the user or the password: ")
        assert redis.stats().facts["problem"] == reason_of(redis, "get")
    with closing(own_valkey.backend(password="swordfish")) as redis:
        put(redis, KEY, PAYLOAD)
        assert get(redis, KEY, 5000) == PAYLOAD
        told = f"{redis!r} {redis.stats()!r} {redis.__dict__!r} {redis._connections.__dict__!r}"
        assert "swordfish" not in told


def test_a_user_of_the_servers_needs_these_permissions_and_no_more(own_valkey: Valkey) -> None:
    commands = (
        "get mget set unlink multi exec watch unwatch pexpireat persist hset expire hlen hrandfield hdel"
    )
    commands += " hdel hscan info"
    allowed = ["-@all", *(f"+{command}" for command in commands.split())]
    own_valkey.admin().execute_command("ACL", "SETUSER", "kv", "on", ">swordfish", "~prefixd:1:*", *allowed)  # type: ignore[no-untyped-call]
    with closing(own_valkey.backend(username="kv", password="swordfish")) as redis:
        put(redis, KEY, make_payload("a", 2 * PART_BYTES))
        assert get(redis, KEY, 2 * PART_BYTES) is not None
        assert redis.resident([KEY]) != [None]
        for soft_ms in (4_000_000_000_000, 0, 0):
            assert redis.amend(KEY, partial(ending, soft_ms))
        redis.put_manifest(b"\x01" * 16, "{}")
        assert list(redis.manifests()) == ["{}"]
        assert "problem" not in redis.stats().facts
        redis.delete(KEY)
        own_valkey.admin().execute_command("ACL", "SETUSER", "kv", "-set")  # type: ignore[no-untyped-call]
        assert reason_of(redis, "put").startswith("the user lacks a permission: ")


@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        ("LOADING Valkey is loading the dataset in memory", "the server still loads its data: "),
        ("MISCONF Errors writing to the AOF file", "the server cannot save to its disk"),
        ("MASTERDOWN Link with MASTER is down", "the server is a replica without its primary: "),
        ("MOVED 3999 127.0.0.1:6381", "the server is a node of a cluster: "),
        ("BUSY Valkey is busy running a script", "the server is busy with a script: "),
        ("ERR unknown command 'PXAT'", "the server refuses: ERR unknown command 'PXAT'"),
    ],
)
def test_what_a_server_replies_is_told_with_what_to_do(reply: str, wanted: str) -> None:
    error = ours("get", RefusedError(reply))
    assert type(error) is BackendError
    assert error.reason.startswith(wanted)


@pytest.mark.parametrize(
    ("fault", "wanted"),
    [
        (driver.BusyLoadingError("Valkey is loading"), "the server still loads its data: "),
        (driver.TimeoutError("Timeout connecting to server"), LATE),
        (
            driver.ConnectionError("Error 111 connecting"),
            "the server cannot be reached: Error 111 connecting",
        ),
        (ConnectionResetError("reset"), "the server cannot be reached: reset"),
    ],
)
def test_what_the_driver_reports_is_told_with_what_to_do(fault: Exception, wanted: str) -> None:
    assert ours("get", fault).reason.startswith(wanted)


def test_something_else_on_that_port_is_a_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with closing(Valkey.backend_at(f"redis://127.0.0.1:{other.getsockname()[1]}")) as redis:
            assert reason_of(redis, "get").startswith("the server's answer is not understood: ")
        answering.join()


def test_closing_does_not_wait_for_a_server_that_hangs(own_valkey: Valkey, redis: RedisBackend) -> None:
    put(redis, KEY, PAYLOAD)
    own_valkey.stop_answering()
    faults: list[BaseException] = []

    def read() -> None:
        try:
            get(redis, KEY, 5000)
        except BackendError as error:
            faults.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    redis.close()
    reading.join(5.0)
    assert not reading.is_alive()
    assert len(faults) == 1
    own_valkey.go_on()
    assert reason_of(redis, "get") == "the backend is closed"
    assert reason_of(redis, "manifests") == "the backend is closed"
    assert own_valkey.admin().exists(header_name(KEY))
