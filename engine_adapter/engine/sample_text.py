"""A text like those that models read: prose in a few languages, and code. Its bytes decide namespaces."""

from __future__ import annotations

PROSE = """\
The harbour was quiet when Marta arrived, an hour before the ferry. She had counted on rain, but the sky \
over the islands was clear, and the first boats were already on their way home. "You're early," said the \
man at the counter. "Nobody comes before seven." He gave her a ticket, number 4,187, and pointed at the \
bench by the window. In 1962, when the bridge was planned, the town had 12,300 inhabitants; today there \
are fewer than 3,000, most of them older than sixty. What had kept the others away? Work, she thought, and \
the long winters, and perhaps nothing but the habit of leaving. Water boils at a lower temperature on a \
mountain because the pressure of the air is smaller there: about one degree for every three hundred \
metres. To make the dough, mix 500 g of flour with a teaspoon of salt, add the yeast and the warm water, \
and knead it for ten minutes until it no longer sticks to your hands.

Am nächsten Morgen war der Brief immer noch nicht da, obwohl die Post längst gekommen sein musste. \
La bibliothèque ouvre à neuf heures; il faut s'inscrire avant le 15 mars. \
El tren de las ocho llegó con mucho retraso, como siempre. \
春天来了,河边的柳树又绿了。今日は雨が降っています。Сегодня хорошая погода, и мы идём гулять.
"""

CODE = """\
import json
from pathlib import Path

class Counter:
    def __init__(self, limit: int = 100) -> None:
        self._counts: dict[str, int] = {}
        self.limit = limit

    def add(self, name: str, amount: int = 1) -> bool:
        total = self._counts.get(name, 0) + amount
        if total > self.limit:
            raise ValueError(f"{name!r} is beyond {self.limit}")
        self._counts[name] = total
        return total == self.limit

def load(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]

{"id": 17, "tags": ["a", "b"], "price": 12.50, "nested": {"ok": true, "next": null}}

SELECT name, COUNT(*) AS n FROM orders WHERE year >= 2021 GROUP BY name ORDER BY n DESC LIMIT 10;

for (size_t i = 0; i < n; ++i) { sum += x[i] * y[i]; }  // O(n)

$ git log --oneline -5 && make test | tail -n 3
| column | type | default |
|--------|------|---------|
| `id`   | int  | 0       |
<ul class="list"><li><a href="https://example.com/?q=1&amp;p=2">link</a></li></ul>
"""
