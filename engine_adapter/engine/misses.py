"""Why a prompt's first missing block is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Lock, Thread
from typing import Any

from kvstore.absences import Cause
from kvstore.clock import Clock
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace, differing_fields
from kvstore.store import TieredStore

_MOST_CHARACTERS = 60
_MOST_DIFFERENCES = 8
_MOST_RELATIVES = 16
_FRESH_S = 300.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Difference:
    """A field of the namespace whose value is another where the tokens are stored; values are shortened."""

    field: str
    here: str
    there: str


@dataclass(frozen=True, slots=True)
class Miss:
    """What became of block ``index``, the first that is in no tier.

    ``tier`` is where it was last, empty where that does not matter, ``at_ms`` when it left (epoch, 0:
    not known). ``differences`` are there when nobody stored it in this namespace, but in another one
    of the same tenant. Where none was found, ``num_unsearched`` of these were not looked at: too many.
    """

    index: int
    first_token: int
    cause: Cause
    tier: str = ""
    at_ms: int = 0
    differences: tuple[Difference, ...] = ()
    num_unsearched: int = 0

    def sentence(self) -> str:
        """Return it for people."""
        subject = f"block {self.index}, from token {self.first_token} on,"
        if self.differences:
            fields = "; ".join(f"{one.field} is {one.here}, there {one.there}" for one in self.differences)
            return f"{subject} is stored in another namespace, which differs: {fields}"
        place = f" (tier {self.tier})" if self.tier else ""
        return f"{subject} {_WORDS[self.cause]}{place}{self._limit()}"

    def _limit(self) -> str:
        if not self.num_unsearched:
            return ""
        return (
            f"; {self.num_unsearched} more of this tenant's namespaces, which differ most, were not searched"
        )


_WORDS = {
    Cause.NEVER_STORED: "was stored by nobody, as far back as is known",
    Cause.EVICTED: "was evicted to make room",
    Cause.EXPIRED: "has reached the end of its time",
    Cause.CORRUPT: "was damaged and therefore dropped",
    Cause.MISSING: "was lost by its medium",
    Cause.QUARANTINED: "was found to be wrong and is in quarantine",
    Cause.CLEARED: "was removed by somebody",
    Cause.DROPPED: "was refused when it was to be stored: not admitted, no room, or a tier at fault",
    Cause.UNKNOWN_FORM: "is there in another version's form, or an unknown codec's, and cannot be read here",
    Cause.PAUSED: "is in a tier that is left out for its faults",
    Cause.PRESENT: "has come meanwhile",
}


def first_miss(
    store: TieredStore, keys: Sequence[bytes], tiers: Sequence[str | None], block_tokens: int
) -> Miss | None:
    """Return what became of the first block in no tier; ``None``: there is no such block. Never blocks."""
    index = next((index for index, tier in enumerate(tiers) if tier is None), None)
    if index is None:
        return None
    absence = store.why_absent(keys[index])
    return Miss(index, index * block_tokens, absence.cause, absence.tier, absence.at_ms)


class Relatives:
    """The other namespaces of each tenant, as they were known not long ago. Thread-safe."""

    def __init__(self, store: TieredStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._by_salt: dict[str, list[Namespace]] = {}
        self._read_s: float | None = None
        self._is_reading = False
        self._lock = Lock()

    def refresh(self) -> None:
        """Read them anew; blocks on the media, for some seconds at most."""
        by_salt: dict[str, list[Namespace]] = {}
        for namespace in self._store.known_namespaces(_ANSWER_S):
            by_salt.setdefault(namespace.salt, []).append(namespace)
        with self._lock:
            self._by_salt, self._read_s = by_salt, self._clock.monotonic_s()

    def refresh_behind(self) -> None:
        """Have them read anew by a thread, unless they were a moment ago. Never blocks."""
        with self._lock:
            is_fresh = self._read_s is not None and self._clock.monotonic_s() - self._read_s < _FRESH_S
            if is_fresh or self._is_reading:
                return
            self._is_reading = True
        Thread(target=self._refresh_once, name="namespaces", daemon=True).start()

    def of(self, namespace: Namespace) -> list[Namespace]:
        """Return the same tenant's others, those that differ least first."""
        known = self._by_salt.get(namespace.salt, ())
        others = [other for other in known if other.digest != namespace.digest]
        others.sort(key=lambda other: len(differing_fields(namespace, other)))
        return others

    def _refresh_once(self) -> None:
        try:
            self.refresh()
        finally:
            with self._lock:
                self._is_reading = False


def traced(
    miss: Miss,
    ours: Namespace,
    others: Sequence[Namespace],
    tokens: Sequence[int],
    find: Callable[[Sequence[bytes]], Sequence[str | None]],
) -> Miss:
    """Return ``miss`` with how the first of ``others`` differs that has its block.

    A bounded number of them is searched; where none of these has it, how many were not. ``find`` says in
    which tier each key's block is, if in any.
    """
    for other in others[:_MOST_RELATIVES]:
        keys = _keys_elsewhere(other, tokens, miss.first_token)
        if keys and find(keys[-1:])[0] is not None:
            return replace(miss, differences=_differences(ours, other))
    return replace(miss, num_unsearched=max(0, len(others) - _MOST_RELATIVES))


def _keys_elsewhere(other: Namespace, tokens: Sequence[int], first_token: int) -> list[bytes]:
    """Return the chain of keys up to the block that holds ``first_token`` in ``other``; empty: none can."""
    end = (first_token // other.block_tokens + 1) * other.block_tokens
    return chain_keys(other.digest, tokens[:end], other.block_tokens) if end <= len(tokens) else []


def _differences(ours: Namespace, theirs: Namespace) -> tuple[Difference, ...]:
    """Return in what two namespaces differ, with both values; details of the model's configuration last."""
    names = sorted(differing_fields(ours, theirs), key=lambda name: "." in name)
    shown = [Difference(name, _value(ours, name), _value(theirs, name)) for name in names[:_MOST_DIFFERENCES]]
    return tuple(shown)


def _value(namespace: Namespace, name: str) -> str:
    field, *path = name.split(".")
    value: Any = getattr(namespace, field)
    if path:
        value = json.loads(value)
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
    if value is None or value == "":
        return "none"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}…"
