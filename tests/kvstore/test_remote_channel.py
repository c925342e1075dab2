from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from kvstore.errors import ChannelError, InvariantError
from kvstore.remote import wire
from kvstore.remote.channel import MOST_BODY_BYTES, Channel
from kvstore.remote.staging import Staging
from kvstore.remote.wire import Place


@pytest.fixture
def pair() -> Iterator[tuple[Channel, Channel, socket.socket]]:
    """Return two ends of a connection, and the second's socket."""
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    ends = Channel(one), Channel(other)
    yield (*ends, other)
    for end in ends:
        end.close()


def test_messages_arrive_whole_and_in_order(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, other, _ = pair
    long = bytes(range(256)) * 20_000

    def send() -> None:
        one.send(1, b"a", b"b")
        one.send(2, long)
        one.send(3)

    sending = threading.Thread(target=send)
    sending.start()
    assert [bytes(other.receive().body) for _ in range(3)] == [b"ab", long, b""]
    sending.join()


def test_a_descriptor_belongs_to_its_message(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, other, _ = pair
    read_end, write_end = os.pipe()
    one.send(1)
    one.send(2, descriptor=read_end)
    one.send(3)
    received = [other.receive() for _ in range(3)]
    assert [message.descriptor >= 0 for message in received] == [False, True, False]
    os.write(write_end, b"x")
    assert os.read(received[1].descriptor, 1) == b"x"
    for descriptor in (read_end, write_end, received[1].descriptor):
        os.close(descriptor)


def test_the_end_of_a_connection_is_told_to_whoever_waits(
    pair: tuple[Channel, Channel, socket.socket],
) -> None:
    one, other, _ = pair
    one.shut()
    one.shut()
    with pytest.raises(ChannelError, match="ended"):
        other.receive()
    with pytest.raises(ChannelError):
        one.send(1)


def test_who_says_nothing_for_too_long_is_given_up(pair: tuple[Channel, Channel, socket.socket]) -> None:
    one, _, _ = pair
    one.set_timeout(0.01)
    with pytest.raises(ChannelError, match="timed out"):
        one.receive()


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (struct.pack("<IBB2x", MOST_BODY_BYTES + 1, 1, 0), "longer"),
        (struct.pack("<IBB2x", 0, 1, 1), "without its descriptor"),
    ],
)
def test_an_odd_message_is_refused(
    pair: tuple[Channel, Channel, socket.socket], head: bytes, reason: str
) -> None:
    one, _, other = pair
    other.sendall(head)
    with pytest.raises(ChannelError, match=reason):
        one.receive()


def test_descriptors_that_nobody_asked_for_end_the_connection(
    pair: tuple[Channel, Channel, socket.socket],
) -> None:
    one, _, other = pair
    for _ in range(8):
        socket.send_fds(other, [b"\0"], [0])
    with pytest.raises(ChannelError, match="no message"):
        one.receive()
    one.close()


def test_keys_and_places_are_packed_and_unpacked() -> None:
    keys = [bytes([number]) * 16 for number in range(3)]
    assert wire.unpack_keys(memoryview(b"".join(keys))) == keys
    places = [Place(1, 2, 3 << 32, 4, 5, (1 << 64) - 1), wire.NOWHERE]
    assert wire.unpack_places(memoryview(wire.pack_places(places))) == places


@pytest.mark.parametrize("body", [b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ChannelError):
        wire.unpack_json(memoryview(body))


@pytest.mark.parametrize("body", [b"x", b"x" * 17, b"x" * 16 * (wire.MOST_KEYS + 1)])
def test_parts_of_keys_and_too_many_are_refused(body: bytes) -> None:
    with pytest.raises(ChannelError):
        wire.unpack_keys(memoryview(body))


def test_staging_parts_do_not_overlap_and_grow_together_again() -> None:
    page = 4096
    staging = Staging(memoryview(bytearray(4 * page)))
    starts = [staging.take(page) for _ in range(4)]
    assert starts == [0, page, 2 * page, 3 * page]
    assert staging.take(1) is None
    staging.check()
    for start in (0, 2 * page, page):
        staging.give_back(start)
        staging.check()
    assert staging.take(3 * page) == 0
    with pytest.raises(KeyError):
        staging.give_back(page)
    staging.give_back(0)
    staging.give_back(3 * page)
    assert staging.is_unused()
    assert staging.take(4 * page) == 0


def test_who_waits_for_staging_memory_gets_what_is_given_back() -> None:
    staging = Staging(memoryview(bytearray(4096)))
    assert staging.take(4096) == 0
    giving = threading.Timer(0.05, staging.give_back, [0])
    giving.start()
    assert staging.take(4096, timeout_s=5.0) == 0
    giving.join()


def test_books_that_contradict_themselves_are_noticed() -> None:
    staging = Staging(memoryview(bytearray(8192)))
    staging.take(4096)
    staging._used.clear()
    with pytest.raises(InvariantError):
        staging.check()
