"""What an operator does to a store: set its rules, pin, clear, quarantine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvstore.clock import Clock
from kvstore.errors import ConfigError
from kvstore.keeping import KeepingIndex
from kvstore.namespace import Namespace
from kvstore.pins import Pin
from kvstore.placement import Placement
from kvstore.retention import MAX_LIFETIME_S, Retention
from kvstore.store_config import refuse_odd_quotas
from kvstore.tier import Tier, TierSpec


@dataclass(frozen=True, slots=True)
class Pinned:
    """What was pinned until ``until_ms`` (epoch): blocks by tier, those that follow ``absent`` included.

    ``charged_bytes`` are those that were not pinned before; ``absent`` the keys asked for that none of the
    tiers had.
    """

    tenant: str
    until_ms: int
    num_blocks: dict[str, int]
    charged_bytes: int
    absent: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Pinning:
    """Blocks of one tenant in one tier that are pinned until the same time (epoch ms)."""

    tenant: str
    tier: str
    until_ms: int
    num_blocks: int
    charged_bytes: int


class Upkeep:
    """The part of a store that its operator uses. Thread-safe."""

    _specs: tuple[TierSpec, ...]
    _tiers: tuple[Tier, ...]
    _names: tuple[str, ...]
    _index: KeepingIndex
    _placement: Placement
    _clock: Clock

    def set_retention(self, retention: Retention) -> None:
        """Hold to these rules from now on, also what is there, which takes a look at all of it.

        Soft ends that uses have named stay, and no hard limit of before is put off.
        A quota below what is there: as soon as its tenant or namespace stores, its own blocks make way until
        it fits, and when room is needed in the tier, they go first. A pin budget below what is pinned:
        nothing more is. Raises ``ConfigError`` for quotas of a tier that is not there.
        """
        refuse_odd_quotas(retention, self._specs)
        self._placement.rewrite_headers(self._index.set_retention(retention))

    @property
    def retention(self) -> Retention:
        """The rules that hold now."""
        return self._index.retention

    def meet(self, namespace: Namespace) -> None:
        """Note to whom a namespace belongs, whose blocks may be there already; quick when it is known."""
        if moved := self._index.register(namespace):
            self._placement.rewrite_headers(moved)

    def pin(
        self,
        keys: Sequence[bytes],
        *,
        for_s: float | None = None,
        until_s: float | None = None,
        tiers: Sequence[str] | None = None,
    ) -> Pinned:
        """Keep a prefix, named by its blocks' keys, for a time or until one (epoch seconds).

        Pins what is there, in ``tiers`` or in all that have it, blocks that the named ones follow included,
        and tells what is not: store it and pin again. All of it or nothing: raises ``PinBudgetError`` when it
        is more than the tenant has left of its pin budget, or a tier of its half. Blocks that are pinned
        already stay to the later end and are charged once. Raises ``ConfigError`` for no keys, blocks of
        several tenants, a tier that is not there, and a time that is over or beyond a century.
        """
        bits = self._bits(tiers)
        if not keys:
            raise ConfigError("keys", "name at least one block")
        until_ms = self._pin_end_ms(for_s, until_s)
        wish = self._index.pin(keys, bits, self._names, until_ms)
        there = {record.key: record for records in wish.records.values() for record in records}
        self._placement.rewrite_headers(list(there.values()), insist=True)
        return Pinned(
            wish.tenant,
            until_ms,
            {self._names[bit]: len(records) for bit, records in wish.records.items() if records},
            sum(wish.new_bytes.values()),
            tuple(key for key in keys if key not in there),
        )

    def unpin(self, keys: Sequence[bytes], tiers: Sequence[str] | None = None) -> int:
        """Let a prefix be ordinary again, but for what another pinned one shares.

        Returns how many blocks were pinned; one that was in two tiers counts twice. Raises ``ConfigError``
        for a tier that is not there.
        """
        unpinned = self._index.unpin(keys, self._bits(tiers))
        self._placement.rewrite_headers(unpinned, insist=True)
        return len(unpinned)

    def pins(self, limit: int = 1000) -> list[Pinning]:
        """Return what is pinned, by tenant, tier and end; the ``limit`` that end first."""
        told: list[Pinning] = []
        for tier in self._tiers:
            pins = self._index.pins(tier.bit)
            num_blocks, charged = Counter[tuple[str, int]](), Counter[tuple[str, int]]()
            for pin in pins:
                num_blocks[_group(pin)] += 1
                charged[_group(pin)] += pin.charged_bytes
            told += [
                Pinning(tenant, tier.name, until_ms, num, charged[tenant, until_ms])
                for (tenant, until_ms), num in num_blocks.items()
            ]
        return sorted(told, key=lambda pinning: (pinning.until_ms, pinning.tenant))[:limit]

    def evict(self, keys: Iterable[bytes]) -> int:
        """Remove blocks from every tier that stores bytes; those in use stay. Returns how many went."""
        return sum(self._placement.remove_from(self._tiers, key) for key in keys)

    def clear(self, tier: str | None = None) -> int:
        """Remove every block that is not in use from ``tier`` or from all of them; returns how many.

        Clearing all of them ends the quarantine of blocks that the engine's pool does not have any more.
        Raises ``ConfigError`` for a tier that is not there.
        """
        bits = self._bits(None if tier is None else [tier])
        chosen = [held for held in self._tiers if held.bit in bits]
        keys = {key for held in chosen for key in self._placement.keys_in(held)}
        num_gone = sum(self._placement.remove_from(chosen, key) for key in keys)
        if tier is None:
            self._index.end_quarantine()
        return num_gone

    def quarantine(self, key: bytes) -> None:
        """Remove a wrong block, and what was computed on it, from every tier, in use or not; keep them out.

        Whoever holds them finds them gone; ``ended`` names them, so that the engine's pool lets go of
        them too. They are neither found nor stored again in this process until ``clear()``, and health
        says so.
        """
        self._placement.quarantine(key)

    def flush(self, timeout_s: float) -> bool:
        """Block until what was stored has reached the lower tiers; says whether it has."""
        ends_at_s = time.monotonic() + timeout_s
        num_flushed = sum(tier.pool.flush(max(0.0, ends_at_s - time.monotonic())) for tier in self._tiers)
        return num_flushed == len(self._tiers)

    def _bits(self, tiers: Sequence[str] | None) -> list[int]:
        """Return the numbers of these tiers, of all that store bytes where none are named."""
        for name in tiers or ():
            if name not in self._names[1:]:
                raise ConfigError("tier", f"{name!r} is not one of {', '.join(self._names[1:])}")
        return [tier.bit for tier in self._tiers if tiers is None or tier.name in tiers]

    def _pin_end_ms(self, for_s: float | None, until_s: float | None) -> int:
        now_ms = self._clock.wall_ms()
        if (for_s is not None and until_s is not None) or for_s is until_s:
            raise ConfigError("for_s", "say for how long (for_s) or until when (until_s), one of both")
        lasting_s = until_s - now_ms / 1000 if until_s is not None else for_s
        if lasting_s is None or not 0 < lasting_s <= MAX_LIFETIME_S:
            name = "for_s" if until_s is None else "until_s"
            reason = f"must end after now, and within {MAX_LIFETIME_S} seconds"
            raise ConfigError(name, reason)
        return now_ms + max(1, round(lasting_s * 1000))


def _group(pin: Pin) -> tuple[str, int]:
    return pin.tenant, pin.until_ms
