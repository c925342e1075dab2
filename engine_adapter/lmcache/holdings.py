"""What LMCache was told that its second tier holds, and which of it has gone since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from engine_adapter.lmcache.identity import Place

Key = TypeVar("Key", bound=Hashable)

_CHECKED_FOR_EACH = 4
_LEAST_CHECKED = 16


class Holding(NamedTuple):
    """Where a chunk was put, and its length."""

    place: Place
    nbytes: int


class Holdings(Generic[Key]):
    """Chunks by LMCache's keys. Thread-safe.

    The store evicts by itself and tells nobody, so a few of those that were checked longest ago are looked
    for whenever some are added: more than can have gone meanwhile.
    """

    def __init__(self, are_here: Callable[[Sequence[Place]], list[bool]]) -> None:
        self._are_here = are_here
        self._held: OrderedDict[Key, Holding] = OrderedDict()
        self._lock = Lock()

    def add(self, key: Key, holding: Holding) -> bool:
        """Note a chunk that is there; says whether it is a new one."""
        with self._lock:
            is_new = key not in self._held
            self._held.setdefault(key, holding)
            return is_new

    def of(self, keys: Iterable[Key]) -> dict[Key, Holding]:
        """Return what is known of these."""
        with self._lock:
            return {key: self._held[key] for key in keys if key in self._held}

    def gone_of(self, keys: Iterable[Key]) -> list[Key]:
        """Return those of ``keys`` that were there and are not any more; they stay noted until ``remove``."""
        return self._gone(self.of(keys))

    def gone_of_some(self, num_added: int) -> list[Key]:
        """Look for some, and return those that are gone."""
        with self._lock:
            num = min(len(self._held), max(_LEAST_CHECKED, num_added * _CHECKED_FOR_EACH))
            checked = dict(self._held.popitem(last=False) for _ in range(num))
            self._held.update(checked)
        return self._gone(checked)

    def remove(self, keys: Iterable[Key]) -> dict[Key, Holding]:
        """Forget these, and return what was known of them."""
        with self._lock:
            return {key: self._held.pop(key) for key in keys if key in self._held}

    def __len__(self) -> int:
        return len(self._held)

    def _gone(self, checked: dict[Key, Holding]) -> list[Key]:
        if not checked:
            return []
        here = self._are_here([holding.place for holding in checked.values()])
        return [key for key, is_here in zip(checked, here, strict=True) if not is_here]
