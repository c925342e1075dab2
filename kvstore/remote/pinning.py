"""What a server does when its clients pin blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvstore.errors import PinBudgetError
from kvstore.namespace import tenant_digest
from kvstore.remote.session import Session
from kvstore.remote.tenancy import Role

_MOST_PINNINGS = 10_000


def pin(
    session: Session,
    keys: Sequence[bytes],
    for_s: float | None,
    until_s: float | None,
    tiers: Sequence[str] | None,
) -> dict[str, Any]:
    """Pin a client's own blocks; see ``TieredStore.pin``. Raises ``AccessError`` or ``ConfigError``."""
    session.tenant.require(Role.ADMIN)
    own = session.own(keys)
    try:
        pinned = session.store.pin(own, for_s=for_s, until_s=until_s, tiers=tiers)
    except PinBudgetError as error:
        return {"beyond": [error.bound, error.wanted_bytes, error.left_bytes]}
    gone = set(pinned.absent)
    absent = [key.hex() for key, mine in zip(keys, own, strict=True) if mine in gone]
    return {**asdict(pinned), "absent": absent}


def unpin(session: Session, keys: Sequence[bytes], tiers: Sequence[str] | None) -> int:
    """Let a client's own blocks be ordinary again. Raises ``AccessError`` or ``ConfigError``."""
    session.tenant.require(Role.ADMIN)
    return session.store.unpin(session.own(keys), tiers)


def pins(session: Session, limit: int) -> list[dict[str, Any]]:
    """Return what is pinned of a client's own, the ``limit`` that end first."""
    name = session.tenant.name
    pinnings = session.store.pins(_MOST_PINNINGS if name else min(limit, _MOST_PINNINGS))
    mine = [one for one in pinnings if not name or one.tenant == tenant_digest(name)]
    return [asdict(one) for one in mine[: max(0, limit)]]
