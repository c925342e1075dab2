"""What is known of how prompts will be wanted: the engine tells it to its pool and to the store."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence as Seq

from engine_adapter.engine.events import Reason
from engine_adapter.engine.prefix import PrefixCache
from engine_adapter.engine.request import Request
from engine_adapter.engine.sequence import Sequence
from kvstore.clock import Clock
from kvstore.errors import InvariantError
from kvstore.hints import hint_of

_MOST_SESSIONS = 4096
_MOST_WAITING = 16
_MOST_BLOCKS = 1 << 16

_Name = tuple[str, str, str]


class Sessions:
    """How long sessions paused the last time; those that went on last, at most so many."""

    def __init__(self) -> None:
        self._ended_s: OrderedDict[_Name, float] = OrderedDict()
        self._pauses_s: dict[_Name, float] = {}

    def began(self, request: Request, now_s: float) -> None:
        """Note that a request of its session has come."""
        name = _name(request)
        if name is not None and (ended_s := self._ended_s.get(name)) is not None:
            self._pauses_s[name] = max(0.0, now_s - ended_s)

    def ended(self, request: Request, now_s: float) -> float | None:
        """Note that it has ended; returns how long its session paused the last time, if it is known."""
        name = _name(request)
        if name is None:
            return None
        self._ended_s[name] = now_s
        self._ended_s.move_to_end(name)
        if len(self._ended_s) > _MOST_SESSIONS:
            self._pauses_s.pop(self._ended_s.popitem(last=False)[0], None)
        return self._pauses_s.get(name)

    def __len__(self) -> int:
        return len(self._ended_s)


class Foreseeing:
    """Tells which prompts wait and how others ended. Used by the engine's thread alone.

    What the first few of the queue need goes last, in the pool and in every tier of the store, as long as
    they wait. When an answer has ended, why it did and what the client says of its session follow its blocks
    to wherever they are stored.
    """

    def __init__(self, prefix: PrefixCache, clock: Clock) -> None:
        self._prefix = prefix
        self._clock = clock
        self._sessions = Sessions()
        self._spared: dict[int, list[bytes]] = {}
        self._num_blocks = 0

    def came(self, sequence: Sequence) -> None:
        """Note that a request has come."""
        self._sessions.began(sequence.request, self._clock.monotonic_s())

    def waits(self, waiting: Seq[Sequence]) -> None:
        """Spare what the first of ``waiting`` need, and no longer what others needed that were the first."""
        first = waiting[:_MOST_WAITING]
        numbers = {sequence.number for sequence in first}
        for number in self._spared.keys() - numbers:
            self._unspare(number)
        for sequence in first:
            if sequence.number not in self._spared:
                self._spare(sequence)

    def ended(self, sequence: Sequence, reason: Reason) -> None:
        """Note that an answer has ended, the last one to its prompt."""
        request = sequence.request
        pause_s = self._sessions.ended(request, self._clock.monotonic_s())
        pause_s = pause_s if request.expected_pause_s is None else request.expected_pause_s
        hint = hint_of(reason, ends_session=request.end_session, pause_s=pause_s)
        if hint is not None and (keys := self._prefix.computed_keys(sequence)):
            self._prefix.traffic.stores.tell(keys, hint)

    def check(self) -> None:
        """Raise ``InvariantError`` unless the pool spares just what this has told it to."""
        keys = Counter(key for keys in self._spared.values() for key in keys)
        if len(self._prefix.pool.spared) != len(keys) or keys.total() != self._num_blocks:
            raise InvariantError("other blocks are spared than those that are waited for")

    def _spare(self, sequence: Sequence) -> None:
        keys = self._prefix.wanted_keys(sequence)
        keys = self._spared[sequence.number] = keys[: _MOST_BLOCKS - self._num_blocks]
        self._num_blocks += len(keys)
        self._prefix.pool.spared.spare(keys)
        self._prefix.store.foresight.spare(keys)

    def _unspare(self, number: int) -> None:
        keys = self._spared.pop(number)
        self._num_blocks -= len(keys)
        self._prefix.pool.spared.unspare(keys)
        self._prefix.store.foresight.unspare(keys)


def _name(request: Request) -> _Name | None:
    return None if request.session is None else (request.tenant, request.salt, request.session)
