"""``benchmarks/several_engines.py`` in miniature; its figures mean nothing here."""

from __future__ import annotations

import pytest

from benchmarks.several_engines import measure


@pytest.mark.parametrize("over_http", [False, True])
def test_each_engine_is_measured_alone_and_beside_the_others(over_http: bool) -> None:
    report = measure(2, 0.2, over_http=over_http, start_s=1.0)
    assert len(report["alone_gb_s"]) == len(report["together_gb_s"]) == 2
    assert min(*report["alone_gb_s"], *report["together_gb_s"]) > 0
    assert 0 < report["smallest_share"] <= 1
