"""What the digests of namespaces stand for, as far as anybody here or on the media knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from threading import Lock

from kvstore.clock import Clock
from kvstore.manifests import MAX_KNOWN, Manifests
from kvstore.namespace import Namespace

_WAIT_S = 2.0
_ASKED_AGAIN_S = 10.0


class Names:
    """Namespaces by digest. Thread-safe; may block on the media, a few seconds at most."""

    def __init__(self, manifests: Manifests, clock: Clock) -> None:
        self._manifests = manifests
        self._clock = clock
        self._found: dict[bytes, Namespace] = {}
        self._asked_s: float | None = None
        self._lock = Lock()

    def known(self) -> Mapping[bytes, Namespace]:
        """Return all that are known, here or beside the blocks on the media."""
        self._ask()
        return self._here()

    def of(self, digests: Iterable[bytes]) -> Mapping[bytes, Namespace]:
        """Return the namespaces of these digests, those that are known; the media are asked if one is not."""
        here = self._here()
        if any(digest and digest not in here for digest in digests):
            return self.known()
        return here

    def _here(self) -> dict[bytes, Namespace]:
        with self._lock:
            return self._found | self._manifests.registered()

    def _ask(self) -> None:
        """Read the manifests on the media, unless that was done a moment ago."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            if self._asked_s is not None and now_s < self._asked_s + _ASKED_AGAIN_S:
                return
            self._asked_s = now_s
        found = {namespace.digest: namespace for namespace in self._manifests.known(_WAIT_S)}
        with self._lock:
            self._found = dict(list((self._found | found).items())[-2 * MAX_KNOWN :])
