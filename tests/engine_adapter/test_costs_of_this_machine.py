"""What is kept of costs, told to people."""

from __future__ import annotations

import json
import os
from pathlib import Path

from engine_adapter.cost_file import CostFile, costs_of_this_machine
from engine_adapter.engine.costs import KnownCosts
from policies.lines import LineState

KNOWN = KnownCosts(lines={"disk": LineState(0.01, 1e9)})


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
