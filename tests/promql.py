"""Reads the part of PromQL that dashboards use, strictly enough to tell what no Prometheus would take."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

AGGREGATIONS = frozenset({"sum", "avg", "max", "min", "count"})
OF_A_RANGE = frozenset({"rate", "increase", "deriv"})
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_:][\w:]*)|(?P<number>\d+(?:\.\d+)?)|(?P<text>\"[^\"]*\")"
    r"|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/<>=(){},]))"
)
_OPERATORS = frozenset({"+", "-", "*", "/", ">", "<", "==", "!=", ">=", "<="})


@dataclass(frozen=True)
class Selected:
    """A metric as a query names it: with which labels, over a range or not, and inside which function."""

    metric: str
    labels: frozenset[str]
    grouped_by: frozenset[str]
    has_range: bool
    inside: str | None


def selections(query: str) -> list[Selected]:
    """Return what ``query`` reads. Raises ``ValueError`` where it is not PromQL as we know it."""
    reader = _Reader(query)
    found = list(reader.expression(frozenset(), None))
    if reader.peek():
        raise ValueError(f"{query!r} goes on with {reader.peek()!r}")
    return found


class _Reader:
    def __init__(self, query: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        end = 0
        for match in _TOKEN.finditer(query):
            if match.start() != end:
                raise ValueError(f"{query!r} is not read at {query[end:]!r}")
            end = match.end()
            self._tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
        if query[end:].strip():
            raise ValueError(f"{query!r} is not read at {query[end:]!r}")
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def take(self, *wanted: str) -> str:
        if self._at == len(self._tokens):
            raise ValueError(f"it ends where {wanted or 'something'} should come")
        _, text = self._tokens[self._at]
        if wanted and text not in wanted:
            raise ValueError(f"{text!r} stands where {wanted} should")
        self._at += 1
        return text

    def expression(self, groups: frozenset[str], inside: str | None) -> Iterator[Selected]:
        yield from self.term(groups, inside)
        while self.peek() in _OPERATORS:
            self.take()
            yield from self.term(groups, inside)

    def term(self, groups: frozenset[str], inside: str | None) -> Iterator[Selected]:
        kind = self._tokens[self._at][0] if self._at < len(self._tokens) else ""
        text = self.take()
        if text == "(":
            yield from self.expression(groups, inside)
            self.take(")")
        elif text in AGGREGATIONS:
            yield from self.aggregation(text)
        elif text in OF_A_RANGE:
            self.take("(")
            yield from self.expression(groups, text)
            self.take(")")
        elif text == "histogram_quantile":
            self.take("(")
            if not 0 < float(self.take()) < 1:
                raise ValueError("a quantile lies between 0 and 1")
            self.take(",")
            yield from self.expression(groups, inside)
            self.take(")")
        elif kind == "name":
            yield Selected(text, self.matchers(), groups, self.takes_range(), inside)
        elif kind != "number":
            raise ValueError(f"{text!r} is no term")

    def aggregation(self, name: str) -> Iterator[Selected]:
        groups: set[str] = set()
        if self.peek() == "by":
            self.take()
            self.take("(")
            groups.add(self.take())
            while self.take(",", ")") == ",":
                groups.add(self.take())
        self.take("(")
        yield from self.expression(frozenset(groups), name)
        self.take(")")

    def matchers(self) -> frozenset[str]:
        labels: set[str] = set()
        if self.peek() != "{":
            return frozenset()
        self.take()
        while True:
            labels.add(self.take())
            self.take("=", "=~", "!=", "!~")
            if not self.take().startswith('"'):
                raise ValueError("a label is compared with a text")
            if self.take(",", "}") == "}":
                return frozenset(labels)

    def takes_range(self) -> bool:
        if self.peek().startswith("["):
            self.take()
            return True
        return False
