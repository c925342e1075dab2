from __future__ import annotations

import pytest

from engine_adapter.engine.departures import Departures


def busy(*ends_s: float) -> Departures:
    """Return what is known after requests ended at these times, with more of them open ever since 100."""
    departures = Departures()
    departures.began(100.0)
    for end_s in ends_s:
        departures.ended(end_s, is_last=False)
    return departures


def test_a_place_is_free_when_the_next_request_should_end() -> None:
    assert busy(104.0, 108.0, 112.0).next_s(112.0) == pytest.approx(4.0)


def test_several_places_take_as_many_ends() -> None:
    assert busy(104.0, 108.0, 112.0).next_s(112.0, num=3) == pytest.approx(12.0)


def test_the_last_ends_count_most() -> None:
    slowed = busy(102.0, 104.0, *(104.0 + 10 * number for number in range(1, 30)))
    assert 9.0 < slowed.next_s(394.0) <= 10.0


def test_an_end_that_does_not_come_is_taken_into_account() -> None:
    assert busy(104.0).next_s(106.0) == pytest.approx(4.0)
    assert busy(104.0).next_s(124.0) == pytest.approx(4.0 + (20.0 - 4.0) / 8)
    assert busy().next_s(107.0) == pytest.approx(7.0)


def test_time_without_any_request_does_not_count() -> None:
    departures = busy(104.0)
    departures.ended(108.0, is_last=True)
    departures.began(5000.0)
    departures.began(5001.0)
    departures.ended(5004.0, is_last=True)

    assert departures.next_s(9000.0) == pytest.approx(4.0)


@pytest.mark.parametrize(("ends_s", "retry_s"), [((), 1.0), ((100.1, 100.2), 1.0), ((400.0,), 60.0)])
def test_it_is_told_within_bounds(ends_s: tuple[float, ...], retry_s: float) -> None:
    assert busy(*ends_s).next_s(ends_s[-1] if ends_s else 100.0) == retry_s
