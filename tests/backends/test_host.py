from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backends.host import HostBackend
from kvstore.arena import PAGE_BYTES, Arena
from kvstore.conformance.backend import BackendConformance, get, make_key, make_payload, put
from kvstore.errors import BackendError, OutOfSpaceError
from kvstore.frame import HEADER_BYTES
from kvstore.seams import Lending


class TestHostBackend(BackendConformance):
    def make_backend(self, tmp_path: Path) -> HostBackend:  # noqa: ARG002
        return HostBackend(Arena(64 * 1024 * 1024))


def test_a_full_arena_is_out_of_space_and_takes_blocks_again_after_a_delete() -> None:
    host = HostBackend(Arena(2 * PAGE_BYTES))
    for name in "ab":
        put(host, make_key(name), make_payload(name, PAGE_BYTES))
    with pytest.raises(OutOfSpaceError):
        put(host, make_key("c"), make_payload("c", PAGE_BYTES))
    host.delete(make_key("a"))
    put(host, make_key("c"), make_payload("c", PAGE_BYTES))
    assert get(host, make_key("b"), PAGE_BYTES) == make_payload("b", PAGE_BYTES)
    host.check()


def test_a_replacement_that_finds_no_room_leaves_nothing_of_the_old_block() -> None:
    host = HostBackend(Arena(PAGE_BYTES))
    put(host, make_key("a"), make_payload("old", 100))
    with pytest.raises(OutOfSpaceError):
        put(host, make_key("a"), make_payload("new", 100))
    assert get(host, make_key("a"), 100) is None
    assert host.stats().occupied_bytes == 0


def test_an_adopted_slot_is_lent_and_surrendered_without_a_copy() -> None:
    arena = Arena(4 * PAGE_BYTES)
    host = HostBackend(arena)
    key, slot = make_key("a"), arena.allocate(5000)
    assert slot is not None
    assert isinstance(host, Lending)
    slot.view[:] = make_payload("a", 5000)
    adopted, lent = host.adopt(key, slot), host.lend(key)
    assert adopted is not None
    assert lent is not None
    slot.view[0] ^= 1
    assert adopted.data == lent.data == slot.view
    adopted.give_back()
    lent.give_back()
    assert (host.stats().occupied_bytes, arena.used_bytes) == (2 * PAGE_BYTES, 2 * PAGE_BYTES)
    assert host.surrender(key) is slot
    assert (host.stats().occupied_bytes, arena.used_bytes) == (0, 2 * PAGE_BYTES)
    assert (host.lend(key), host.surrender(key)) == (None, None)
    host.check()


def test_an_adopted_slot_has_no_frame_to_read_and_is_freed_by_a_delete() -> None:
    arena = Arena(4 * PAGE_BYTES)
    host = HostBackend(arena)
    slot = arena.allocate(5000)
    assert slot is not None
    adopted = host.adopt(make_key("a"), slot)
    assert adopted is not None
    adopted.give_back()
    assert get(host, make_key("a"), 5000) is None
    host.delete(make_key("a"))
    assert (host.stats().occupied_bytes, arena.used_bytes) == (0, 0)


@pytest.mark.parametrize("let_go", [HostBackend.delete, HostBackend.surrender])
def test_a_slot_is_not_used_again_before_every_loan_of_it_is_given_back(
    let_go: Callable[[HostBackend, bytes], object],
) -> None:
    arena = Arena(PAGE_BYTES)
    host = HostBackend(arena)
    key, slot = make_key("a"), arena.allocate(PAGE_BYTES)
    assert slot is not None
    adopted, lent = host.adopt(key, slot), host.lend(key)
    assert adopted is not None
    assert lent is not None

    assert let_go(host, key) is None
    assert host.lend(key) is None
    assert arena.allocate(PAGE_BYTES) is None

    adopted.give_back()
    assert arena.allocate(PAGE_BYTES) is None
    lent.give_back()
    assert arena.used_bytes == 0


def test_a_closed_backend_leaves_a_slot_to_its_owner() -> None:
    arena = Arena(PAGE_BYTES)
    host = HostBackend(arena)
    slot = arena.allocate(PAGE_BYTES)
    assert slot is not None
    host.close()
    assert host.adopt(make_key("a"), slot) is None
    slot.free()


def test_a_slot_is_not_used_again_while_somebody_reads_it() -> None:
    arena = Arena(PAGE_BYTES)
    host = HostBackend(arena)
    put(host, make_key("a"), make_payload("a", PAGE_BYTES))
    used_while_reading = []

    class DeletesFirst:
        """A header buffer whose filling is the moment at which another thread deletes the block."""

        def __setitem__(self, _place: slice, _header: bytes) -> None:
            host.delete(make_key("a"))
            used_while_reading.append(arena.used_bytes)

    out = bytearray(PAGE_BYTES)
    assert host.get_into(make_key("a"), DeletesFirst(), memoryview(out))  # type: ignore[arg-type]
    assert out == make_payload("a", PAGE_BYTES)
    assert (used_while_reading, arena.used_bytes) == ([PAGE_BYTES], 0)
    host.check()


def test_a_failed_read_lets_go_of_its_slot() -> None:
    arena = Arena(PAGE_BYTES)
    host = HostBackend(arena)
    put(host, make_key("a"), make_payload("a", PAGE_BYTES))
    with pytest.raises(TypeError):
        host.get_into(make_key("a"), memoryview(bytearray(HEADER_BYTES)), memoryview(bytes(PAGE_BYTES)))
    host.delete(make_key("a"))
    assert arena.used_bytes == 0


def test_a_closed_backend_gives_its_slots_back_and_refuses_more() -> None:
    arena = Arena(4 * PAGE_BYTES)
    host = HostBackend(arena)
    put(host, make_key("a"), make_payload("a", 100))
    host.close()
    with pytest.raises(BackendError, match="closed"):
        put(host, make_key("b"), make_payload("b", 100))
    assert get(host, make_key("a"), 100) is None
    assert (arena.used_bytes, host.stats().occupied_bytes) == (0, 0)
    arena.check()
