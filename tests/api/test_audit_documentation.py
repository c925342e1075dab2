"""The page about the audit names all that is told of it, and of the last hour."""

from __future__ import annotations

import re
from pathlib import Path

from api.admin.audit_views import AuditView, WrongCopyView
from api.history import SPANS, History
from api.history_readings import series_of, serving_reading
from engine_adapter.engine.reporting import CostsNow, EngineStatistics
from engine_adapter.engine.time_buckets import BOUNDS_S
from kvstore.statistics import StoreStatistics, TierStatistics

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "auditing.md").read_text()


def test_every_field_of_the_audit_is_documented() -> None:
    fields = {*AuditView.model_fields, *WrongCopyView.model_fields}
    assert {name for name in fields if f"`{name}`" not in PAGE} == set()


def test_every_series_is_documented_with_its_unit() -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| `(\w+)` \| (\w*)", PAGE, re.MULTILINE)
    documented = {
        (name, unit, bool(label)) for names, unit, label in rows for name in re.findall(r"\w+", names)
    }
    history, counts = History(), {"loaded_bytes": 1, "stored_bytes": 1}
    times = [1] * (len(BOUNDS_S) + 1)
    for scale in (0, 1):
        engine = EngineStatistics(
            0, 0, 0, 0, 0, 0, {"stop": scale}, {"disk": scale}, scale, 0, {}, 0, 0, 0, 0, 0, CostsNow(),
            {"disk": [scale * num for num in times]},
        )  # fmt: skip
        store = StoreStatistics((TierStatistics("disk", 1, 1, 1, counts),), scale, scale, 0)
        history.add(serving_reading(engine, store), 1_767_225_600_000)
    told = {(one.name, one.unit, one.label is not None) for one in series_of(history.samples("hour"))}
    assert told == documented
    assert all(f"span={span.name}" in PAGE for span in SPANS)
