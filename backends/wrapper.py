"""What the wrappers for tests and what-if have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from kvstore.frame import Header
from kvstore.seams import Amending, Backend, BackendStats, HeaderChange, Streaming, Want


class Wrapper:
    """``backend`` for all that a wrapper leaves as it is.

    What a backend can do beyond ``Backend`` is hidden: a wrapped one neither lends nor discovers. It rewrites
    headers if ``backend`` does.
    """

    amend: Callable[[bytes, HeaderChange], bool]

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        if isinstance(backend, Amending):
            self.amend = partial(self._amend, backend)

    def _amend(self, backend: Amending, key: bytes, change: HeaderChange) -> bool:
        return backend.amend(key, change)

    def delete(self, key: bytes) -> None:
        self._backend.delete(key)

    def footprint(self, payload_bytes: int) -> int:
        return self._backend.footprint(payload_bytes)

    def recover(self) -> Iterable[Header]:
        return self._backend.recover()

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        self._backend.put_manifest(namespace, manifest)

    def manifests(self) -> Iterable[str]:
        return self._backend.manifests()

    def stats(self) -> BackendStats:
        return self._backend.stats()

    def close(self) -> None:
        self._backend.close()


def each_of(backend: Backend, wants: Sequence[Want]) -> Iterator[int | None]:
    """Yield what ``backend`` has for each want: in one exchange if it streams, else one after the other."""
    if isinstance(backend, Streaming):
        return backend.get_each(wants)
    return (backend.get_into(*want) for want in wants)
