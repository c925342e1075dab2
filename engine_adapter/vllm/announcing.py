"""Which blocks the store has, under vLLM's own hashes: what routers are told in KV events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from engine_adapter.vllm.tracking import Tracked
from kvstore.interface import BlockStore

_MOST_ANNOUNCED = 1 << 16
_ASKED_AT_A_TIME = 256
_ASKED_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Stored:
    """A block that the store has. Hashes are vLLM's; ``lora`` is the adapter's name and number, if any."""

    hash: bytes
    parent: bytes | None
    tokens: Sequence[int]
    lora: tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Removed:
    """A block that the store has no longer."""

    hash: bytes


class Cleared:
    """Nothing that was stored is found any more."""


Event = Stored | Removed | Cleared


@dataclass(slots=True)
class Announcer:
    """Collects events. What has gone is noticed by asking for a few blocks now and then.

    For the scheduler's thread alone. At most ``_MOST_ANNOUNCED`` blocks are remembered.
    """

    store: BlockStore
    _events: list[Event] = field(default_factory=list)
    _announced: dict[bytes, bytes] = field(default_factory=dict)
    _ordered: dict[bytes, Stored] = field(default_factory=dict)
    _asked_s: float = 0.0

    def ordered(self, tracked: Tracked, first: int, end: int) -> None:
        """Note that blocks ``first`` to ``end`` are to be stored."""
        for index in range(first, end):
            if (event := _stored(tracked, index)) is not None:
                self._ordered[tracked.keys[0][index]] = event
        while len(self._ordered) > _MOST_ANNOUNCED:
            del self._ordered[next(iter(self._ordered))]

    def stored(self, keys: Sequence[bytes]) -> None:
        """Note that blocks were stored."""
        for key in keys:
            event = self._ordered.pop(key, None)
            if event is not None:
                self._announce(key, event)

    def found(self, tracked: Tracked) -> None:
        """Note which blocks of a prompt were found."""
        for index in sorted(tracked.present):
            key = tracked.keys[0][index]
            if key not in self._announced and (event := _stored(tracked, index)) is not None:
                self._announce(key, event)

    def cleared(self) -> None:
        """Note that nothing is found any more."""
        self._announced.clear()
        self._ordered.clear()
        self._events = [Cleared()]

    def take(self) -> list[Event]:
        """Return what has happened since the last call."""
        self._ask(self.store.now_s())
        events, self._events = self._events, []
        return events

    def _announce(self, key: bytes, event: Stored) -> None:
        self._announced[key] = event.hash
        self._events.append(event)
        while len(self._announced) > _MOST_ANNOUNCED:
            oldest = next(iter(self._announced))
            self._events.append(Removed(self._announced.pop(oldest)))

    def _ask(self, now_s: float) -> None:
        if not self._announced or now_s - self._asked_s < _ASKED_EVERY_S:
            return
        self._asked_s = now_s
        keys = list(islice(self._announced, _ASKED_AT_A_TIME))
        for key, tier in zip(keys, self.store.peek(keys), strict=True):
            event_hash = self._announced.pop(key)
            if tier is None:
                self._events.append(Removed(event_hash))
            else:
                self._announced[key] = event_hash  # asked for last the next time


def _stored(tracked: Tracked, index: int) -> Stored | None:
    """Return the event of a block; ``None``: vLLM has no hash for it."""
    request, step = tracked.request, tracked.block_tokens
    hashes = request.block_hashes
    if index >= len(hashes):
        return None
    tokens = tuple(request.all_token_ids[index * step : (index + 1) * step])
    lora = request.lora_request
    about = (str(lora.lora_name), int(lora.lora_int_id)) if lora else None
    return Stored(hashes[index], hashes[index - 1] if index else None, tokens, about)
