"""What the administration answers, as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from api.quantities import format_bytes, format_duration
from policies.wording import format_seconds

Answer = Mapping[str, Any]
Rows = Sequence[Sequence[str]]
NOTHING = "-"
_SHORT = 12


@dataclass(frozen=True)
class Sheet:
    """A title, and a table under it; numbers stand on the right in columns whose name begins with ``>``."""

    title: str = ""
    columns: Sequence[str] = ()
    rows: Rows = field(default_factory=list)


def sheet(columns: str, rows: Iterable[Iterable[object]], title: str = "") -> Sheet:
    """Return a table; the columns are separated by bars. What would drive a terminal is replaced."""
    return Sheet(title, columns.split("|"), [[plain(cell) for cell in row] for row in rows])


def facts(pairs: Iterable[tuple[str, object]]) -> Sheet:
    """Return what stands beside what, without headings."""
    return sheet("|", pairs)


def line(text: str) -> Sheet:
    """Return one line."""
    return Sheet(plain(text))


def listing(answer: Answer, columns: str, rows: Iterable[Iterable[object]], what: str) -> list[Sheet]:
    """Return a list, and how many there are in all; ``what`` says of what there is none."""
    shown, total = len(answer["data"]), answer["total"]
    if not total:
        return [line(f"no {what}")]
    more = [line(f"{shown} of {total}; --limit 0 shows all")] if shown < total else []
    return [sheet(columns, rows), *more]


def plain(cell: object) -> str:
    """Return a cell's text in one line, without what drives a terminal."""
    text = NOTHING if cell is None or cell == "" else str(cell)
    return "".join(character if character.isprintable() else "?" for character in text)


def size(num_bytes: int | None) -> str:
    """Return bytes for people."""
    return NOTHING if num_bytes is None else format_bytes(num_bytes)


def ago(at_s: float | None, now_s: float) -> str:
    """Return how long ago something was."""
    return NOTHING if at_s is None else format_duration(max(0.0, now_s - at_s))


def until(at_s: float | None, now_s: float, never: str = "never") -> str:
    """Return in how long something will be."""
    return never if at_s is None else format_duration(max(0.0, at_s - now_s))


def took(seconds: float | None) -> str:
    """Return how long something takes, or how much time it saves: then it may be negative."""
    if not seconds:
        return NOTHING if seconds is None else "0 s"
    return format_seconds(seconds) if seconds > 0 else f"-{format_seconds(-seconds)}"


def share(part: float, whole: float) -> str:
    """Return a part in percent."""
    return f"{100 * part / whole:.0f} %" if whole else NOTHING


def short(digest: str | None) -> str:
    """Return how a digest begins; words stay as they are."""
    return NOTHING if digest is None else digest[:_SHORT]


def counts(numbers: Mapping[str, Any]) -> str:
    """Return ``1024 disk, 64 host``; what is 0 is left out."""
    return ", ".join(f"{number} {name}" for name, number in numbers.items() if number) or NOTHING


def amounts(held: Mapping[str, Answer]) -> str:
    """Return ``disk 64 blocks, 64 MiB; host ...``."""
    return "; ".join(f"{name} {amount(one)}" for name, one in held.items() if one["blocks"]) or "nothing"


def amount(held: Answer) -> str:
    """Return ``64 blocks, 64 MiB``; of the engine's own pool, which tells no bytes, the blocks alone."""
    return f"{blocks(held['blocks'])}, {size(held['bytes'])}" if held["bytes"] else blocks(held["blocks"])


def blocks(number: int) -> str:
    """Return ``1 block`` or ``64 blocks``."""
    return f"{number} block" if number == 1 else f"{number} blocks"
