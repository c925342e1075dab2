from __future__ import annotations

from itertools import pairwise

import pytest

from policies.lines import Arrival, Line, LineState, Smoothed
from tests.policies.simulated_line import BLOCK_BYTES, SimulatedLine

LATENCIES_S = [0.0002, 0.02, 0.5]
BLOCKS_S = [0.0001, 0.005, 0.05]


def learnt(sim: SimulatedLine, line: Line | None = None, num_bursts: int = 3, window: int = 0) -> Line:
    line = line or Line()
    for _ in range(num_bursts):
        sim.burst(line, min(200, 32 + round(3 * sim.latency_s / sim.block_s)), window)
    return line


def rate_of(line: Line) -> float:
    assert line.state is not None
    return line.state.bytes_per_s


def load_s(line: Line, sim: SimulatedLine, num_blocks: int) -> float:
    cost = line.cost(sim.now_s)
    assert cost is not None
    return cost.load_s(num_blocks * BLOCK_BYTES)


def queue_of(line: Line, now_s: float) -> float:
    cost = line.cost(now_s)
    assert cost is not None
    return cost.queue_s


def test_nothing_is_known_of_a_line_before_the_first_arrival() -> None:
    line = Line()
    line.asked("a", BLOCK_BYTES, 1.0)
    assert (line.state, line.cost(2.0)) == (None, None)


def test_half_of_a_lone_block_s_time_is_taken_for_latency() -> None:
    line = Line()
    line.learn([Arrival(1.0, 1.2, BLOCK_BYTES)])
    assert line.state is not None
    assert line.state.latency_s == pytest.approx(0.1)
    assert line.state.bytes_per_s == pytest.approx(BLOCK_BYTES / 0.1)


@pytest.mark.parametrize("latency_s", LATENCIES_S)
@pytest.mark.parametrize("block_s", BLOCKS_S)
def test_latency_and_rate_are_learnt_within_a_few_bursts(latency_s: float, block_s: float) -> None:
    sim = SimulatedLine(latency_s, block_s)
    line = learnt(sim)
    assert line.state is not None
    assert line.state.bytes_per_s == pytest.approx(sim.bytes_per_s, rel=0.15)
    assert line.state.latency_s == pytest.approx(latency_s, rel=0.15, abs=0.1 * block_s)


@pytest.mark.parametrize("latency_s", LATENCIES_S)
@pytest.mark.parametrize("block_s", BLOCKS_S)
@pytest.mark.parametrize("num_readers", [2, 3, 4])
def test_readers_whose_blocks_come_in_clumps_do_not_make_a_line_look_faster(
    latency_s: float, block_s: float, num_readers: int
) -> None:
    sim = SimulatedLine(latency_s, block_s, num_readers)
    line = learnt(sim)
    assert rate_of(line) == pytest.approx(sim.bytes_per_s, rel=0.15)
    all_s = latency_s + (32 + num_readers - 1) * block_s  # the last clump may not be full
    assert load_s(line, sim, 32) == pytest.approx(all_s, rel=0.15)


@pytest.mark.parametrize("latency_s", LATENCIES_S)
@pytest.mark.parametrize("block_s", BLOCKS_S)
def test_with_few_blocks_on_their_way_the_line_looks_no_faster_than_it_is(
    latency_s: float, block_s: float
) -> None:
    sim = SimulatedLine(latency_s, block_s)
    line = learnt(sim, window=2)
    assert rate_of(line) <= sim.bytes_per_s * 1.01
    assert load_s(line, sim, 1) == pytest.approx(latency_s + block_s, rel=0.15)


@pytest.mark.parametrize(("latency_factor", "rate_factor"), [(10, 1), (0.1, 1), (1, 10), (1, 0.1), (10, 0.1)])
def test_a_bad_first_sample_is_corrected(latency_factor: float, rate_factor: float) -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = Line(LineState(0.02 * latency_factor, sim.bytes_per_s * rate_factor))
    learnt(sim, line, num_bursts=6)
    assert rate_of(line) == pytest.approx(sim.bytes_per_s, rel=0.15)
    assert load_s(line, sim, 1) == pytest.approx(0.025, rel=0.15)


def test_a_tier_ten_times_slower_is_found_out_within_a_burst() -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    sim.block_s = 0.05
    sim.burst(line, 24)
    assert rate_of(line) == pytest.approx(sim.bytes_per_s, rel=0.3)


def test_a_tier_that_turns_slow_is_found_out_while_its_blocks_are_on_their_way() -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    for number in range(20):
        line.asked(number, BLOCK_BYTES, sim.now_s)
    before_s = load_s(line, sim, 1)
    sim.now_s += 0.5
    assert load_s(line, sim, 1) > 5 * before_s


def test_a_tier_that_has_recovered_is_found_out_within_a_burst() -> None:
    sim = SimulatedLine(0.02, 0.05)
    line = learnt(sim)
    sim.block_s = 0.005
    sim.burst(line, 40)
    assert rate_of(line) == pytest.approx(sim.bytes_per_s, rel=0.3)


@pytest.mark.parametrize("number", [4, 12, 31])
def test_one_block_that_comes_late_moves_little(number: int) -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    expected_s = load_s(line, sim, 32)
    sim.late_s = {sim.num_asked + number: 1.0}
    sim.burst(line, 32)
    assert expected_s <= load_s(line, sim, 32) <= 1.5 * expected_s


def test_blocks_may_be_told_of_in_any_order_and_later() -> None:
    arrivals = [Arrival(1.0, 1.02 + 0.005 * number, BLOCK_BYTES) for number in range(1, 25)]
    ordered, shuffled = Line(), Line()
    for arrival in arrivals:
        ordered.learn([arrival])
    shuffled.learn(reversed(arrivals))
    assert ordered.state == shuffled.state


def test_what_loads_on_their_way_leave_to_wait_is_the_queue() -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    for number in range(4):
        line.asked(number, BLOCK_BYTES, sim.now_s)
    cost = line.cost(sim.now_s)
    assert cost is not None
    assert cost.queue_s == pytest.approx(0.02 + 4 * 0.005, rel=0.05)
    assert line.bytes_on_way == 4 * BLOCK_BYTES
    for number in range(4):
        line.ended(number)
    assert line.bytes_on_way == 0


def test_what_does_not_come_costs_more_the_longer_it_does_not() -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    line.asked("never", BLOCK_BYTES, sim.now_s)
    costs_s = []
    for waited_s in (0.0, 0.1, 1.0, 10.0, 100.0, 1000.0):
        cost = line.cost(sim.now_s + waited_s)
        assert cost is not None
        costs_s.append(cost.load_s(BLOCK_BYTES))
    assert all(earlier < later for earlier, later in pairwise(costs_s[1:]))
    assert costs_s[-1] > 100


def test_a_load_given_up_overdue_teaches_that_the_line_is_slower() -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    for number in range(2):
        line.asked(number, BLOCK_BYTES, sim.now_s)
        line.given_up(number, sim.now_s + 2.0)
    assert line.bytes_on_way == 0
    assert rate_of(line) <= sim.bytes_per_s / 9


def test_a_load_given_up_in_time_teaches_nothing() -> None:
    sim = SimulatedLine(0.02, 0.005)
    line = learnt(sim)
    before = line.state
    line.asked("a", BLOCK_BYTES, sim.now_s)
    line.given_up("a", sim.now_s + 0.021)
    line.given_up("unknown", sim.now_s + 100)
    line.ended("unknown")
    assert (line.state, line.bytes_on_way) == (before, 0)


def test_a_line_is_stale_when_nothing_was_heard_for_long_and_nothing_is_asked() -> None:
    line = Line(LineState(0.02, 1e8))
    assert line.is_stale(0.0)
    line.learn([Arrival(1.0, 1.1, BLOCK_BYTES)])
    assert not line.is_stale(1.0)
    assert line.is_stale(60.0)
    line.asked("probe", BLOCK_BYTES, 60.0)
    assert not line.is_stale(60.0)


def test_what_is_kept_between_runs_is_where_the_next_begins() -> None:
    known = LineState(0.02, 1e8)
    assert Line(known).state == known


def test_smoothed_follows_slowly_and_after_a_long_time_at_once() -> None:
    quick, slow = Smoothed(1.0), Smoothed(1.0)
    for smoothed in (quick, slow):
        smoothed.add(1.0, 0.0)
    quick.add(2.0, 1.0)
    slow.add(2.0, 1e6)
    assert quick.value == pytest.approx(2**0.31, rel=0.01)
    assert slow.value == pytest.approx(2.0)


def test_smoothed_believes_what_is_far_off_when_it_comes_twice() -> None:
    smoothed = Smoothed(1.0)
    smoothed.add(1.0, 0.0)
    smoothed.add(100.0, 0.0)
    assert smoothed.value == pytest.approx(3**0.3)
    smoothed.add(100.0, 0.0)
    assert smoothed.value == pytest.approx(100.0)


def test_a_load_that_was_given_up_keeps_its_line_busy_for_its_own_bytes() -> None:
    line = Line(LineState(0.5, BLOCK_BYTES / 0.1))
    for token in range(4):
        line.asked(token, BLOCK_BYTES, 100.0)
    for token in range(3):
        line.given_up(token, 100.0)
    cost = line.cost(100.0)
    assert cost is not None
    assert cost.queue_s == pytest.approx(0.5 + 0.1)  # what was given up passes while its latency does
    line.ended(3)
    cost = line.cost(100.0)
    assert cost is not None
    assert cost.load_s(BLOCK_BYTES) == pytest.approx(0.5 + 0.1)
    assert queue_of(line, 100.1) == pytest.approx(0.2)
    assert queue_of(line, 101.0) == 0


def test_what_arrives_behind_a_load_that_was_given_up_tells_that_the_line_is_free() -> None:
    line = Line(LineState(0.5, BLOCK_BYTES / 1.0))
    for token in range(8):
        line.asked(token, BLOCK_BYTES, 100.0)
        line.given_up(token, 100.0)
    assert queue_of(line, 100.0) == pytest.approx(8.0)
    line.learn([Arrival(100.1, 101.0, BLOCK_BYTES)])
    assert queue_of(line, 101.0) == 0


def test_lone_blocks_find_out_that_a_line_is_far_faster_than_was_thought() -> None:
    line = Line(LineState(0.02, BLOCK_BYTES / 10.0))
    for at_s in (100.0, 110.0, 120.0):
        line.learn([Arrival(at_s, at_s + 0.025, BLOCK_BYTES)])
    assert rate_of(line) >= BLOCK_BYTES / 0.03
    assert line.state is not None
    assert line.state.latency_s == pytest.approx(0.02, rel=0.1)


def test_a_block_that_comes_sooner_than_the_latency_proves_it_wrong() -> None:
    line = Line(LineState(0.5, BLOCK_BYTES / 0.01))
    line.learn([Arrival(100.0, 100.03, BLOCK_BYTES)])
    assert line.state is not None
    assert line.state.latency_s == pytest.approx(0.02)
