"""How a server did over time: samples in bounded memory, and the series that are told of them."""

from __future__ import annotations

import threading

import pytest

from api.history import History, Reading, Span
from api.history_readings import Series, series_of, serving_reading, store_reading
from api.sampler import Sampler
from engine_adapter.engine.reporting import CostsNow, EngineStatistics
from engine_adapter.engine.time_buckets import BOUNDS_S, TimeBuckets, quantile_s
from kvstore.clock import Clock
from kvstore.statistics import StoreStatistics, TierStatistics
from tests.eventually import eventually

SPANS = (Span("fine", 5, 4), Span("coarse", 20, 3))
NOON_MS = 1_700_000_000_000


def history_of(*requests: int, every_s: float = 5.0) -> History:
    """Return the history of readings that counted so many requests by then, and held as many bytes."""
    history = History(SPANS)
    for number, num in enumerate(requests):
        reading = Reading({"requests": num}, {"tier_bytes/host": num * 100})
        history.add(reading, NOON_MS + round(number * every_s * 1000))
    return history


def told(history: History, span: str, name: str) -> list[float | None]:
    return [sample.counts.get(name, sample.levels.get(name)) for sample in history.samples(span)]


def test_a_sample_has_what_was_counted_in_its_interval() -> None:
    history = history_of(10, 11, 13, 13)
    assert told(history, "fine", "requests") == [1, 2, 0]
    assert told(history, "fine", "tier_bytes/host") == [1100, 1300, 1300]
    assert [sample.at_s for sample in history.samples("fine")] == [
        1_700_000_010,
        1_700_000_015,
        1_700_000_020,
    ]


def test_coarse_samples_add_up_what_fine_ones_tell() -> None:
    history = history_of(*range(0, 120, 10))
    assert told(history, "fine", "requests") == [10] * 4, "the last ones"
    assert told(history, "coarse", "requests") == [30, 40, 40]
    assert told(history, "coarse", "tier_bytes/host") == [3000, 7000, 11000]


def test_several_readings_of_an_interval_are_one_sample() -> None:
    history = history_of(0, 1, 2, 3, 4, 5, every_s=2.5)
    assert told(history, "fine", "requests") == [1, 2, 2]


def test_only_new_samples_are_asked_for() -> None:
    history = history_of(0, 1, 2, 3)
    first, *others = history.samples("fine")
    assert history.samples("fine", first.at_s) == others


def test_intervals_without_a_reading_have_no_sample() -> None:
    history = history_of(0, 1, 2, every_s=60)
    assert [sample.at_s % 60 for sample in history.samples("fine")] == [25, 25]


def test_a_clock_that_is_put_back_adds_to_the_last_sample() -> None:
    history = history_of(0, 1)
    history.add(Reading({"requests": 5}), NOON_MS - 3_600_000)
    assert told(history, "fine", "requests") == [5]


def test_names_come_and_go() -> None:
    history = History(SPANS)
    for number, counts in enumerate([{}, {"a": 1}, {"a": 1, "b": 2}, {"b": 2}]):
        history.add(Reading(counts), NOON_MS + number * 5000)
    assert [sample.counts for sample in history.samples("fine")] == [{"a": 1}, {"a": 0, "b": 2}, {"b": 0}]


def test_it_is_bounded() -> None:
    history = History(SPANS)
    for number in range(1000):
        history.add(Reading({f"name {number}": 1.0}), NOON_MS + number * 5000)
    assert len(history.samples("fine")) == 4
    assert len(history._count_names._places) == 256
    assert sum(len(sample.counts) for sample in history._samples["fine"]) <= 4 * 256


def buckets(*times_s: float) -> list[int]:
    counted = TimeBuckets()
    for time_s in times_s:
        counted.add(time_s)
    return counted.counts


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("scale_s", [0.01, 1.0, 100.0])
def test_quantiles_are_right_to_half_a_bucket(share: float, scale_s: float) -> None:
    times_s = [scale_s * (1 + number / 100) for number in range(101)]
    found_s = quantile_s(buckets(*times_s), share)
    assert found_s == pytest.approx(times_s[round(share * 100)], rel=0.25)


def test_times_beyond_the_last_bound_count_as_it() -> None:
    assert quantile_s(buckets(1e6), 0.5) == BOUNDS_S[-1]
    assert quantile_s(buckets(0.0), 0.5) is not None
    assert quantile_s(buckets(), 0.5) is None


def store(found: int, wanted: int, loaded_bytes: int = 0) -> StoreStatistics:
    counts = {"loaded_bytes": loaded_bytes, "stored_bytes": 2 * loaded_bytes, "loads": 7}
    tiers = (TierStatistics("device", 1000, 300, 3), TierStatistics("disk", 1000, 500, 5, counts))
    return StoreStatistics(tiers, wanted, found, 0)


def engine(computed: int, disk: int, *ttft_s: float, saved_s: float = 0.0) -> EngineStatistics:
    return EngineStatistics(
        0, 0, 0, 0, 0, 0, {"stop": 2, "length": computed}, {"computed": computed, "disk": disk}, saved_s, 0,
        {}, 0, 0, 0, 0, 0, CostsNow(), {"disk": buckets(*ttft_s)},
    )  # fmt: skip


def series(*readings: Reading) -> dict[tuple[str, str | None], Series]:
    history = History(SPANS)
    for number, reading in enumerate(readings):
        history.add(reading, NOON_MS + number * 5000)
    return {(one.name, one.label): one for one in series_of(history.samples("fine"))}


def test_a_store_alone_tells_of_lookups_and_bytes() -> None:
    found = series(*map(store_reading, [store(0, 0), store(3, 4, 100), store(3, 4, 100)]))
    assert {name: one.values for name, one in found.items()} == {
        ("block_hit_ratio", None): [0.75, None],
        ("lookup_blocks", None): [4, 0],
        ("lookup_hit_blocks", None): [3, 0],
        ("loaded_bytes", "disk"): [100, 0],
        ("stored_bytes", "disk"): [200, 0],
        ("tier_bytes", "device"): [300, 300],
        ("tier_bytes", "disk"): [500, 500],
    }


def test_a_server_with_a_model_tells_of_requests_as_well() -> None:
    readings = [
        serving_reading(engine(0, 0), store(0, 0)),
        serving_reading(engine(25, 75, 1.0, 1.0, 1.0, saved_s=1.5), store(3, 4)),
    ]
    found = series(*readings)
    assert found["hit_ratio", None].values == [0.75]
    assert found["prompt_tokens", "disk"] == Series("prompt_tokens", "tokens", "disk", [75])
    assert found["prompt_tokens", "computed"].values == [25]
    assert found["requests", None].values == [25]
    assert found["saved", None] == Series("saved", "seconds", None, [1.5])
    ttft = found["ttft_p50", "disk"]
    assert ttft.unit == "seconds"
    assert list(ttft.values) == pytest.approx([1.0], rel=0.25)
    assert ("ttft_p95", "disk") in found


def test_the_sampler_reads_until_it_is_closed() -> None:
    numbers, history = iter(range(1000)), History((Span("fine", 1, 5),))
    clock = Clock(wall_ms=lambda: NOON_MS)
    sampler = Sampler(history, lambda: Reading({"n": next(numbers)}), clock, every_s=0.001)
    sampler.start()
    eventually(lambda: sum(sample.counts["n"] for sample in history.samples("fine")) > 3)
    sampler.close()
    sampler.close()
    assert not any(thread.name == "history" for thread in threading.enumerate())


def test_what_cannot_be_read_is_told_once_and_left_out(caplog: pytest.LogCaptureFixture) -> None:
    num_calls = 0

    def read() -> Reading:
        nonlocal num_calls
        num_calls += 1
        raise RuntimeError("not now")

    sampler = Sampler(History(), read, Clock(), every_s=0.001)
    sampler.start()
    eventually(lambda: num_calls > 3)
    sampler.close()
    assert caplog.text.count("the history could not be read") == 1


def test_one_that_was_never_started_can_be_closed() -> None:
    Sampler(History(), Reading, Clock()).close()
