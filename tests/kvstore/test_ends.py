from kvstore.defaults import Defaults
from kvstore.ends import Ends
from kvstore.record import FOREVER_MS, Record

DAY_MS = 24 * 3600 * 1000
DEFAULTS = Defaults([FOREVER_MS, 2 * DAY_MS])


def block(number: int, named_ms: int) -> Record:
    return Record(number.to_bytes(16, "big"), b"", raw_bytes=1, named_ms=named_ms, tiers=2)


def ends_of(*records: Record) -> tuple[Ends, dict[bytes, Record]]:
    held = {record.key: record for record in records}
    ends = Ends(held, DEFAULTS)
    for record in records:
        ends.note(record)
    return ends, held


def test_blocks_are_due_from_the_soonest() -> None:
    late, soon = block(1, 200), block(2, 100)
    ends, _ = ends_of(late, soon)
    assert not ends.has_due(99)
    assert list(ends.due(99)) == []
    assert next(ends.due(200)) is soon
    assert list(ends.due(200)) == [late]
    assert list(ends.due(DAY_MS)) == []


def test_a_block_that_is_in_a_hurry_is_due_at_once() -> None:
    record = block(1, 100)
    ends, _ = ends_of(record)
    ends.look_at(record, 0)
    assert list(ends.due(1)) == [record]


def test_one_that_never_ends_is_not_looked_at() -> None:
    ends, _ = ends_of(block(1, FOREVER_MS))
    assert len(ends) == 0


def test_what_comes_and_goes_leaves_no_entries_behind() -> None:
    ends, held = ends_of()
    for number in range(5000):
        record = held[bytes(16)] = block(0, DAY_MS + number)
        ends.note(record)
    assert len(ends) <= 65
    assert set(map(id, ends.due(2 * DAY_MS))) == {id(held[bytes(16)])}
