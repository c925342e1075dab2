from kvstore.ends import Ends
from kvstore.record import Record

DAY_MS = 24 * 3600 * 1000


def block(number: int, soft_ms: int = 0) -> Record:
    return Record(number.to_bytes(16, "big"), b"", raw_bytes=1, soft_ms=soft_ms, tiers=2)


def ends_of(*records: Record) -> tuple[Ends, dict[bytes, Record]]:
    held = {record.key: record for record in records}
    ends = Ends(held)
    for record in records:
        ends.note(record)
    return ends, held


def test_blocks_are_due_from_the_soonest() -> None:
    late, soon = block(1, soft_ms=200), block(2, soft_ms=100)
    ends, _ = ends_of(late, soon)
    assert ends.due(99, 10) == []
    assert ends.due(200, 1) == [soon]
    assert ends.due(200, 10) == [late]
    assert ends.due(DAY_MS, 10) == []


def test_a_held_block_is_due_when_it_is_let_go() -> None:
    record = block(1, soft_ms=100)
    record.num_holds = 1
    ends, _ = ends_of(record)
    assert ends.due(100, 10) == []
    record.num_holds = 0
    assert ends.due(101, 10) == [record]


def test_an_extended_block_is_due_at_its_new_end_and_one_without_end_never() -> None:
    longer, unending = block(1, soft_ms=100), block(2, soft_ms=100)
    ends, _ = ends_of(longer, unending)
    longer.extend(300)
    unending.extend(0)
    assert ends.due(100, 10) == []
    assert len(ends) == 1, "a block that never ends is not looked at again"
    assert ends.due(300, 10) == [longer]


def test_what_comes_and_goes_leaves_no_entries_behind() -> None:
    ends, held = ends_of()
    for number in range(5000):
        record = held[bytes(16)] = block(0, soft_ms=DAY_MS + number)
        ends.note(record)
    assert len(ends) <= 65
    assert ends.due(2 * DAY_MS, 10) == [held[bytes(16)]]
