"""Costs that were learnt, kept between runs: per machine, model and tier."""

from __future__ import annotations

import json
import logging
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from pathlib import Path
from typing import Any

from engine_adapter.engine.costs import KnownCosts
from kvstore.errors import ConfigError
from policies.cost_model import Work
from policies.lines import LineState
from policies.steps import Step

_log = logging.getLogger(__name__)

_VERSION = 1
_MOST_BYTES = 1 << 20
# Of seconds, counts and rates alike; beyond these they are damage.
_LEAST, _MOST = 1e-12, 1e18
_MOST_FILES = 64
_ABOUT = ("about", "machine")


class CostFile:
    """One JSON file in ``folder`` for each thing that costs depend on, given as ``facts``.

    ``about`` tells people what it is about.
    """

    def __init__(
        self, folder: Path, *facts: str, about: str = "", media: Mapping[str, str] | None = None
    ) -> None:
        """``media`` names each tier's medium: what was learnt of another one is not for this."""
        self._media = {tier: _digest(medium) for tier, medium in (media or {}).items()}
        identity = "\n".join((*_machine(), *facts))
        self._about = about
        self._path = folder / f"{_digest(identity)}.json"

    def read(self) -> KnownCosts:
        """Return what is kept; nothing when there is no file, or one that is of no use."""
        _, media, known = _read(self._path)
        lines = {
            tier: state for tier, state in known.lines.items() if media.get(tier) == self._media.get(tier)
        }
        return KnownCosts(known.steps, lines, known.loaded_byte_s)

    def write(self, known: KnownCosts) -> None:
        """Keep ``known``, in one step. What cannot be kept is told, and measured anew at the next start."""
        facts = {
            "version": _VERSION,
            "about": self._about,
            "machine": _machine_digest(),
            "steps": [{**asdict(step.work), "took_s": step.took_s} for step in known.steps],
            "lines": {tier: asdict(state) for tier, state in known.lines.items()},
            "media": self._media,
            "loaded_byte_s": known.loaded_byte_s,
        }
        temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(facts, indent=1), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as error:
            _log.warning("costs cannot be kept in %s: %s", self._path.parent, error.strerror)
            with suppress(OSError):
                temporary.unlink()


def costs_in(path: Path) -> KnownCosts:
    """Return what the file at ``path`` keeps. Raises ``ConfigError`` where that is nothing."""
    _, _, known = _read(path)
    if known == KnownCosts():
        raise ConfigError("costs", f"{path} is no file of costs, as a server keeps them in its cache_path")
    return known


def costs_of_this_machine(folder: Path) -> list[tuple[str, KnownCosts]]:
    """Return what is kept in ``folder`` for this machine, the newest first, each with what it is about."""
    with suppress(OSError):
        paths = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime, reverse=True)
        kept = [_read(path) for path in paths[:_MOST_FILES]]
        ours = _machine_digest()
        return [(about["about"], known) for about, _, known in kept if about.get("machine") == ours]
    return []


def _machine() -> tuple[str, str, str]:
    return platform.node(), platform.machine(), str(os.cpu_count())


def _machine_digest() -> str:
    return _digest("\n".join(_machine()))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=12).hexdigest()


def _read(path: Path) -> tuple[dict[str, str], dict[str, str], KnownCosts]:
    """Return what a file is about (nothing where it is not said), the tiers' media, and what it keeps."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return {}, {}, KnownCosts()
        facts = json.loads(path.read_text(encoding="utf-8"))
        about = {name: facts[name] for name in _ABOUT if isinstance(facts.get(name), str)}
        media = {str(tier): str(medium) for tier, medium in facts.get("media", {}).items()}
        return about if len(about) == len(_ABOUT) else {}, media, _parse(facts)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError):
        return {}, {}, KnownCosts()


def _parse(facts: dict[str, Any]) -> KnownCosts:
    if facts["version"] != _VERSION:
        return KnownCosts()
    steps = tuple(
        Step(
            Work(
                int(_number(step["tokens"])),
                _number(step["attended"]),
                int(_number(step["decodes"])),
                int(_number(step["context"])),
            ),
            _number(step["took_s"], _LEAST),
        )
        for step in facts["steps"]
    )
    lines = {
        str(tier): LineState(_number(state["latency_s"], _LEAST), _number(state["bytes_per_s"], _LEAST))
        for tier, state in facts["lines"].items()
    }
    return KnownCosts(steps, lines, _number(facts.get("loaded_byte_s", 0.0)))


def _number(value: Any, least: float = 0.0) -> float:
    """Return ``value`` as a number to reckon with. Raises ``ValueError`` and what ``float`` raises."""
    number = float(value)
    if not least <= number <= _MOST:
        raise ValueError(f"{number} is out of range")
    return number
