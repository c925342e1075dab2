"""Second tiers compared: rates, ratios within a round, and what is said of them."""

from __future__ import annotations

from typing import Any

from benchmarks.lmcache_l2 import measure, table
from benchmarks.sides.process import Side

_SECONDS = {"memory": 0.5, "fs_native": 1.0, "resp": 0.25, "disk": 1.0, "redis": 1.0, "fs_native_direct": 2.0}


class FakeSide(Side):
    """LMCache's adapters, which need the same time every time."""

    def __init__(self) -> None:
        """There is no process."""

    def ask(self, do: str, **about: Any) -> Any:
        return 0.1 if do == "memcpy" else _SECONDS[about["name"]] * (2 if do == "store" else 1)


def test_rates_are_of_what_was_moved_and_marks_are_ratios_of_them() -> None:
    report = measure(FakeSide(), list(_SECONDS), 0.5, 2)
    figures = report["figures"]
    assert (figures["memcpy"], figures["memory put"], figures["memory get"]) == (5.0, 0.5, 1.0)
    over_files, over_resp, *_ = report["marks"]
    assert (over_files["theirs"], over_files["ratio"], over_files["met"]) == ("fs_native", 2.0, True)
    assert (over_resp["theirs"], over_resp["ratio"], over_resp["met"]) == ("resp", 0.5, False)
    assert table("2 MiB", report).row_count == 1 + len(_SECONDS) + len(report["marks"])
