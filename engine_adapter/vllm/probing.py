"""Blocks that are loaded for nobody: to learn what a tier takes of which nothing was heard for long."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kvstore.errors import LeaseExpiredError, StoreClosedError
from kvstore.interface import BlockStore
from kvstore.leases import Hit
from kvstore.loading import Ticket
from policies.lines import Arrival

_PROBED_BLOCKS = 2
_GIVEN_UP_S = 10.0


class _Probe:
    """One block on its way."""

    __slots__ = ("arrived_s", "asked_s", "hit", "ticket", "tier")

    def __init__(self, hit: Hit, tier: str, asked_s: float) -> None:
        self.hit = hit
        self.tier = tier
        self.asked_s = asked_s
        self.arrived_s: float | None = None
        self.ticket: Ticket | None = None


class Prober:
    """Asks for the last blocks of a hit in tiers that the request does not use. Never blocks."""

    def __init__(self, store: BlockStore, block_bytes: int) -> None:
        self._store = store
        self._block_bytes = block_bytes
        self._probes: list[_Probe] = []

    def probe(self, keys: Sequence[bytes], tiers: Sequence[str | None], wanted: frozenset[str]) -> None:
        """Ask for two blocks of each tier of ``wanted``, unless probes of it are on their way."""
        for tier in wanted - {probe.tier for probe in self._probes}:
            blocks = [key for key, held in zip(keys, tiers, strict=False) if held == tier]
            self._ask(blocks[-_PROBED_BLOCKS:], tier)

    def arrivals(self) -> dict[str, list[Arrival]]:
        """Return what has arrived since the last call, by tier; give up what has not come for long."""
        arrived: dict[str, list[Arrival]] = {}
        now_s = self._store.now_s()
        for probe in list(self._probes):
            if probe.ticket is None or not (probe.ticket.done() or now_s - probe.asked_s > _GIVEN_UP_S):
                continue
            self._probes.remove(probe)
            block = probe.ticket.take() if probe.ticket.done() else None
            if block is None:
                probe.ticket.abandon()
            else:
                block.release()
                arrival = Arrival(probe.asked_s, probe.arrived_s or now_s, self._block_bytes)
                arrived.setdefault(probe.tier, []).append(arrival)
            probe.hit.release()
        return arrived

    def close(self) -> None:
        """Give up what is on its way."""
        for probe in self._probes:
            if probe.ticket is not None:
                probe.ticket.abandon()
            probe.hit.release()
        self._probes.clear()

    def _ask(self, keys: Sequence[bytes], tier: str) -> None:
        for key in keys:
            hit = self._store.lookup([key])
            if hit.tiers != (tier,):
                hit.release()
                continue
            probe = _Probe(hit, tier, self._store.now_s())
            try:
                probe.ticket = self._store.load(
                    hit, 0, probe.asked_s + _GIVEN_UP_S, partial(self._note, probe)
                )
            except (LeaseExpiredError, StoreClosedError):
                hit.release()
                continue
            self._probes.append(probe)

    def _note(self, probe: _Probe) -> None:
        """Note when a block came; on a transfer thread."""
        probe.arrived_s = self._store.now_s()
