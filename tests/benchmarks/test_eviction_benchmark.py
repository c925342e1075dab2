"""The benchmark of eviction policies, in miniature."""

from __future__ import annotations

import pytest

from benchmarks.eviction import DICTIONARY, Dictionary, measure, slope
from policies.lru import LeafFirstLRU


def test_every_operation_is_timed_at_every_size() -> None:
    rows = measure("lru", LeafFirstLRU, (64, 256), 8, 2)
    assert [row["operation"] for row in rows] == ["touch", "evict and insert"]
    for row in rows:
        assert row["policy"] == "lru"
        assert set(row["seconds"]) == {"64", "256"}
        assert all(0 < each < 0.01 for each in row["seconds"].values())
        assert isinstance(row["slope"], float)


def test_a_dictionary_is_touched_alone() -> None:
    (row,) = measure(DICTIONARY, Dictionary, (64,), 8, 2)
    assert (row["operation"], row["slope"]) == ("touch", None)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_the_slope_is_the_power_of_growth(power: float) -> None:
    sizes = (10, 100, 1_000)
    assert slope(sizes, [size**power for size in sizes]) == pytest.approx(power)
