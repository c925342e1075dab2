"""Costs that were learnt, kept between runs: per machine, model and tier."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engine_adapter.engine.costs import KnownCosts
from policies.cost_model import Work
from policies.lines import LineState
from policies.steps import Step

_VERSION = 1
_MOST_BYTES = 1 << 20


class CostFile:
    """One JSON file in ``folder`` for each thing that costs depend on, given as ``facts``."""

    def __init__(self, folder: Path, *facts: str) -> None:
        identity = "\n".join((platform.node(), platform.machine(), str(os.cpu_count()), *facts))
        self._path = folder / f"{blake2b(identity.encode(), digest_size=12).hexdigest()}.json"

    def read(self) -> KnownCosts:
        """Return what is kept; nothing when there is no file, or one that is of no use."""
        try:
            if self._path.stat().st_size > _MOST_BYTES:
                return KnownCosts()
            return _parse(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return KnownCosts()

    def write(self, known: KnownCosts) -> None:
        """Keep ``known``, in one step. What cannot be written is measured anew at the next start."""
        facts = {
            "version": _VERSION,
            "steps": [{**asdict(step.work), "took_s": step.took_s} for step in known.steps],
            "lines": {tier: asdict(state) for tier, state in known.lines.items()},
        }
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            temporary.replace(self._path)
        except OSError:
            temporary.unlink(missing_ok=True)


def _parse(facts: dict[str, Any]) -> KnownCosts:
    if facts["version"] != _VERSION:
        return KnownCosts()
    steps = tuple(
        Step(
            Work(int(step["tokens"]), float(step["attended"]), int(step["decodes"]), int(step["context"])),
            float(step["took_s"]),
        )
        for step in facts["steps"]
    )
    lines = {
        str(tier): LineState(float(state["latency_s"]), float(state["bytes_per_s"]))
        for tier, state in facts["lines"].items()
    }
    is_sound = all(line.latency_s > 0 and line.bytes_per_s > 0 for line in lines.values())
    return KnownCosts(steps, lines) if is_sound else KnownCosts(steps)
