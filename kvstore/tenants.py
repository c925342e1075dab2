"""To which tenant a namespace belongs, as far as it is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_MIN_COMPACTION = 4096


class Tenants:
    """The tenants of namespaces. Not thread-safe.

    A namespace that was only found on a medium is a *stranger* until its manifest or a request tells whose it
    is. Anybody may invent salts: when they are too many, those of namespaces without blocks are forgotten.
    """

    def __init__(self) -> None:
        self._salts: dict[bytes, str] = {}
        self._strangers: set[bytes] = set()
        self._most = _MIN_COMPACTION

    def __contains__(self, namespace: bytes) -> bool:
        return namespace in self._salts

    def get(self, namespace: bytes) -> str | None:
        """Return the tenant (``Namespace.tenant``); ``None``: a stranger."""
        return self._salts.get(namespace)

    def met(self, namespace: bytes) -> None:
        """Note that a block of this namespace was found on a medium."""
        if namespace not in self._salts:
            self._strangers.add(namespace)

    def learn(self, namespace: bytes, salt: str, in_use: Callable[[], Iterable[bytes]]) -> bool:
        """Note to whom a namespace belongs; says whether it was a stranger that has blocks.

        ``in_use`` names the namespaces that have blocks; it is only asked now and then.
        """
        self._salts[namespace] = salt
        if len(self._salts) > self._most:
            living = set(in_use())
            self._salts = {known: salt for known, salt in self._salts.items() if known in living}
            self._salts[namespace] = salt
            self._strangers &= living
            self._most = max(_MIN_COMPACTION, 2 * len(self._salts))
        was_stranger = namespace in self._strangers
        self._strangers.discard(namespace)
        return was_stranger
