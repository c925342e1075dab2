"""Sidecars compared: ratios within a round, and what is said of them."""

from __future__ import annotations

from typing import Any

from benchmarks.sidecars import LMCACHE, OURS, measure, table
from benchmarks.sides.process import Side


class FakeSide(Side):
    """A sidecar that needs the same time every time."""

    def __init__(self, name: str, times_s: dict[str, float]) -> None:
        self.name, self._times_s = name, times_s

    def ask(self, do: str, **_: Any) -> Any:
        return self._times_s[do]


def test_rates_are_of_128_mib_and_marks_are_ratios_of_them() -> None:
    ours = FakeSide(OURS, {"store": 0.05, "load": 0.025, "memcpy": 0.0134217728})
    report = measure([ours, FakeSide(LMCACHE, {"store": 0.1, "load": 0.1})], 2)
    figures = report["figures"]
    assert round(figures["memcpy_gb_s"], 6) == 10.0
    assert round(figures["prefixd_load_gb_s"] / figures["lmcache_load_gb_s"], 6) == 4.0
    store, load = report["marks"]
    assert (round(store["ratio"], 6), store["met"]) == (2.0, False)
    assert (round(load["ratio"], 6), load["met"]) == (4.0, True)
    assert table(report).row_count == 3
