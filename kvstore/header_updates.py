"""Headers on the media that have fallen behind: rewritten lazily, behind everything else."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.record import Record
from kvstore.tier import Tier


class HeaderUpdates:
    """Not yet."""

    def __init__(self, tiers: Iterable[Tier]) -> None:
        pass

    def ask(self, records: Iterable[Record]) -> None:
        pass
