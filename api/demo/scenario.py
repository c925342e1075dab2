"""What the demonstration asks, in which order, and what must hold of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from api.demo.client import Answer, ask
from api.demo.server import running_server

QUESTIONS = ("What is a token?", "What is a block?", "What is called a namespace?")
TIERS = ("device", "host", "disk")
NUM_STEPS = 2 + 3 * len(QUESTIONS)

_MAX_TOKENS = 48
# In fp32, equal means the same tokens. The device tier holds one prompt with its answer, so that
# a request in between pushes the document off it, as other users would on a busy server; all of the tier is
# for them, none is set aside for the audit in idle time.
_FLAGS = (
    "--compute-dtype", "float32", "--kv-dtype", "float32", "--device-bytes", "96MiB", "--recheck-share", "0"
)  # fmt: skip

Step = Callable[[str], None]
"""Called with what begins, ``NUM_STEPS`` times in all."""


@dataclass(frozen=True, slots=True)
class Row:
    """One request, and the same request without any cache."""

    label: str
    answer: Answer
    clean: Answer

    @property
    def is_equal(self) -> bool:
        """Whether the cache made no difference to the answer."""
        ours, clean = self.answer, self.clean
        return (ours.text, ours.completion_tokens) == (clean.text, clean.completion_tokens)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were taken from a tier."""
        return sum(self.answer.tokens_by_source.get(tier, 0) for tier in TIERS)


def document() -> str:
    """Return the text that all questions are about."""
    return files("api.demo").joinpath("document.txt").read_text("utf-8")


def play(model: Path, workspace: Path, log: Path, step: Step) -> list[Row]:
    """Ask all questions, restart the server on the same disk tier and ask again; takes a minute or so."""
    flags = ["--model", str(model), "--disk-path", str(workspace / "blocks"), *_FLAGS]
    step("starting the server")
    with running_server(flags, log) as url:
        rows = _first_visit(_Asker(url, model.name, step))
    step("restarting the server: only the disk tier survives")
    with running_server(flags, log) as url:
        again = _Asker(url, model.name, step)
        return rows + [
            Row(f"{label}, restarted", again.ask(number), row.clean)
            for number, (label, row) in enumerate(zip(("1st", "2nd", "3rd"), rows, strict=True), start=1)
        ]


def faults(rows: Sequence[Row]) -> list[str]:
    """Return what is wrong with a demonstration; nothing if it shows what it should."""
    differing = [f"{row.label}: the answer is not the clean run's" for row in rows if not row.is_equal]
    uncached = [f"{row.label}: nothing came from a cache" for row in rows[1:] if not row.cached_tokens]
    return differing + uncached


@dataclass(frozen=True, slots=True)
class _Asker:
    url: str
    model: str
    step: Step

    def ask(self, number: int, cache: str = "on") -> Answer:
        self.step(f"question {number}" if cache == "on" else f"question {number} without the cache")
        system = f"Answer questions about this text.\n\n{document()}"
        return ask(self.url, self.model, system, QUESTIONS[number - 1], _MAX_TOKENS, cache)


def _first_visit(asker: _Asker) -> list[Row]:
    first = asker.ask(1)
    second = asker.ask(2)
    first_clean = asker.ask(1, "off")
    # That run had the device for itself: the document is found on the host.
    third = asker.ask(3)
    return [
        Row("1st question", first, first_clean),
        Row("2nd question", second, asker.ask(2, "off")),
        Row("3rd, evicted", third, asker.ask(3, "off")),
    ]
