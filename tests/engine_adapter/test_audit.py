"""The book of the audit: which copies were compared, how much of all that is, and what was wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from engine_adapter.engine import audit
from engine_adapter.engine.audit import AuditBook, WrongCopy
from kvstore.stored_copies import StoredCopies


class Copies:
    """Says of every block that it is in these tiers."""

    def __init__(self, num_stored: int, *tiers: str) -> None:
        self.num_stored = num_stored
        self.tiers = tiers

    def where(self, keys: Sequence[bytes]) -> list[tuple[str, ...]]:
        return [self.tiers for _ in keys]


def book_over(num_stored: int, *tiers: str) -> AuditBook:
    return AuditBook(cast("StoredCopies", Copies(num_stored, *tiers)))


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def test_a_copy_is_fresh_for_an_hour_each_tiers_by_itself() -> None:
    book = book_over(4, "host", "disk")
    assert not book.is_fresh(key(1), "host", 100.0)
    book.note(key(1), "host", 10, 100.0, 1)
    assert book.is_fresh(key(1), "host", 3699.0)
    assert not book.is_fresh(key(1), "host", 3700.0)
    assert not book.is_fresh(key(1), "disk", 101.0)
    assert not book.is_fresh(key(2), "host", 101.0)
    book.note(key(1), "disk", 10, 4000.0, 1)
    assert book.is_fresh(key(1), "disk", 4000.0)
    assert not book.is_fresh(key(1), "host", 4000.0), "that was too long ago"


def test_coverage_is_the_share_of_copies_that_are_there_by_now() -> None:
    book = book_over(8, "host", "disk")
    book.note(key(1), "host", 10, 0.0, 1)
    book.note(key(1), "device", 10, 0.0, 1)
    assert book.facts().coverage == 1 / 8
    book.note(key(1), "disk", 10, 0.0, 1)
    book.note(key(2), "disk", 10, 0.0, 1)
    assert book.facts().coverage == 3 / 8
    assert book_over(0).facts().coverage == 0.0


def test_only_so_many_blocks_are_remembered() -> None:
    book = book_over(10**6, "host")
    for number in range(audit._MOST_KNOWN + 10):
        book.note(key(number), "host", 10, 0.0, 1)
    assert len(book._compared) == audit._MOST_KNOWN
    assert not book.is_fresh(key(9), "host", 1.0)
    assert book.is_fresh(key(10), "host", 1.0)
    assert book.facts().coverage == audit._MOST_KNOWN / 10**6


def test_the_last_wrong_copies_are_told_and_all_of_them_counted() -> None:
    book = book_over(8, "host")
    book.note(key(0), "host", 10, 0.0, 5)
    for number in range(40):
        book.note_wrong(WrongCopy(key(number), number, "host", b"", "", "", 6 + number), 10)
    book.note_failure()
    facts = book.facts()
    assert (facts.num_compared, facts.compared_bytes, facts.num_wrong, facts.num_failed) == (41, 410, 40, 1)
    assert facts.last_at_ms == 45
    assert [wrong.block for wrong in facts.last_wrong] == list(range(39, 7, -1))
    assert not book.is_fresh(key(0), "host", 1.0)
