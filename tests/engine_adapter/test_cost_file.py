from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.cost_file import CostFile, costs_of_this_machine
from engine_adapter.engine.costs import CostBook, KnownCosts
from policies.cost_model import Work
from policies.lines import LineState
from policies.steps import Step

KNOWN = KnownCosts(
    (Step(Work.prefill(0, 512), 0.25), Step(Work(0, 0.0, 4, 900), 0.01)),
    {"disk": LineState(0.001, 1e9), "redis": LineState(0.02, 1e8)},
    loaded_byte_s=2e-9,
)
NOTHING = KnownCosts()


def only_file(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    CostFile(tmp_path / "costs", "model").write(KNOWN)
    assert CostFile(tmp_path / "costs", "model").read() == KNOWN


def test_writing_replaces_what_was_there_and_leaves_nothing_else(tmp_path: Path) -> None:
    file = CostFile(tmp_path, "model")
    file.write(NOTHING)
    file.write(KNOWN)
    assert file.read() == KNOWN
    assert only_file(tmp_path).suffix == ".json"


def test_without_a_file_nothing_is_known(tmp_path: Path) -> None:
    assert CostFile(tmp_path / "nowhere", "model").read() == NOTHING


def test_costs_of_another_model_device_or_machine_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    CostFile(tmp_path, "model", "cpu").write(KNOWN)
    assert CostFile(tmp_path, "other", "cpu").read() == NOTHING
    assert CostFile(tmp_path, "model", "cuda").read() == NOTHING
    monkeypatch.setattr(platform, "node", lambda: "another machine")
    assert CostFile(tmp_path, "model", "cpu").read() == NOTHING


def test_what_was_learnt_of_another_medium_is_not_read(tmp_path: Path) -> None:
    CostFile(tmp_path, "model", media={"disk": "/fast", "redis": "a"}).write(KNOWN)
    moved = CostFile(tmp_path, "model", media={"disk": "/slow", "redis": "a"})
    assert moved.read() == replace(KNOWN, lines={"redis": KNOWN.lines["redis"]})


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_memory_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "costs").write_text("a file, no folder")
    file = CostFile(tmp_path / "costs", "model")
    file.write(KNOWN)
    assert file.read() == NOTHING
    assert caplog.messages == [f"costs cannot be kept in {tmp_path / 'costs'}: File exists"]


def changed(**changes: Any) -> str:
    step = {"tokens": 512, "attended": 1e5, "decodes": 0, "context": 0, "took_s": 0.25}
    line = {"latency_s": 0.001, "bytes_per_s": 1e9}
    step |= {name: value for name, value in changes.items() if name in step}
    line |= {name: value for name, value in changes.items() if name in line}
    return json.dumps({"version": changes.get("version", 1), "steps": [step], "lines": {"disk": line}})


HOSTILE = {
    "empty": "",
    "no JSON": "{",
    "a list": "[]",
    "nothing in it": "{}",
    "null": "null",
    "not text": "\udcff",
    "another version": changed(version=2),
    "steps of words": changed(tokens="many"),
    "a line of words": changed(latency_s="short"),
    "a list for a number": changed(took_s=[1]),
    "lines in a list": '{"version": 1, "steps": [], "lines": []}',
    "a number for steps": '{"version": 1, "steps": 7, "lines": {}}',
    "nested without end": "[" * 100_000,
    "larger than any": json.dumps({"version": 1, "steps": [], "lines": {}}) + " " * 2**21,
    "a rate of nothing": changed(bytes_per_s=0),
    "a rate below nothing": changed(bytes_per_s=-1),
    "an endless rate": changed(bytes_per_s=float("inf")),
    "no number for a latency": changed(latency_s=float("nan")),
    "an endless latency": changed(latency_s=float("inf")),
    "a rate beyond numbers": changed(bytes_per_s=10**400),
    "endless tokens": changed(tokens=float("inf")),
    "tokens below nothing": changed(tokens=-512),
    "no number of seconds": changed(took_s=float("nan")),
    "endless seconds": changed(took_s=float("inf")),
    "attended below nothing": changed(attended=-1.0),
    "attended without number": changed(attended=float("nan")),
    "context below nothing": changed(context=-5),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_file_of_no_use_is_read_as_nothing_known(tmp_path: Path, content: str) -> None:
    file = CostFile(tmp_path, "model")
    file.write(KNOWN)
    only_file(tmp_path).write_text(content, encoding="utf-8", errors="surrogateescape")
    assert file.read() == NOTHING


def test_a_book_made_from_any_file_that_is_read_learns_on(tmp_path: Path) -> None:
    file = CostFile(tmp_path, "model")
    file.write(KNOWN)
    only_file(tmp_path).write_text(changed(took_s=1e18, bytes_per_s=1e-12, latency_s=1e-12))
    costs = CostBook(1000, known=file.read())
    for _ in range(3):
        costs.note_step(Work.prefill(0, 512), 0.25, 1.0)
    costs.asked("disk", "a", 1.0)
    costs.given_up("disk", "a", 2.0)
    assert costs.compute() is not None
    assert costs.loads(3.0)["disk"].bytes_per_s > 0
    assert costs.overdue_s("disk", 3.0) > 0


def test_what_is_kept_is_told_with_what_it_is_about_the_newest_first(tmp_path: Path) -> None:
    for age_s, model in enumerate(("new", "old")):
        CostFile(tmp_path, model, about=f"{model} on cpu").write(KNOWN)
        for path in set(tmp_path.glob("*.json")):
            if model in path.read_text():
                os.utime(path, (1000 - age_s, 1000 - age_s))
    assert costs_of_this_machine(tmp_path) == [("new on cpu", KNOWN), ("old on cpu", KNOWN)]


def test_what_another_machine_or_version_left_is_not(tmp_path: Path) -> None:
    CostFile(tmp_path, "theirs", about="theirs").write(KNOWN)
    (path,) = tmp_path.glob("*.json")
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "machine": "another"}))
    del facts["machine"]
    (tmp_path / "without.json").write_text(json.dumps(facts))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    assert costs_of_this_machine(tmp_path) == []
    assert costs_of_this_machine(tmp_path / "nowhere") == []
