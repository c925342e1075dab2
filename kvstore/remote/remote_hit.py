"""What a lookup in another process found."""

from __future__ import annotations

from collections.abc import Sequence

from kvstore.leases import Hit
from kvstore.remote.transport import Found, Transport


class RemoteHit(Hit):
    """A lookup's answer: each block's fastest tier, and what is held of the server's."""

    __slots__ = ("found",)

    def __init__(
        self,
        keys: Sequence[bytes],
        tiers: tuple[str | None, ...],
        deadline_s: float,
        found: Found,
        transport: Transport,
    ) -> None:
        super().__init__(keys, tiers, (), deadline_s, lambda _records: transport.release(found))
        self.found = found
