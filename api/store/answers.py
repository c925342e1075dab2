"""Answers of the routes over which other machines use the store."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.examples import example

_TIER = {"state": "ok", "reason": ""}
_COUNTS = {
    "name": "host", "budget_bytes": 2 << 30, "used_bytes": 1 << 30, "num_blocks": 1024,
    "counts": {"loads": 7}, "groups": [], "pinned_bytes": 0, "num_pinned": 0,
}  # fmt: skip


class Description(BaseModel):
    """The store as a client needs to know it."""

    model_config = example(tiers=["device", "host", "disk"], lease_s=10.0, asks_media=False)

    tiers: list[str]
    lease_s: float
    asks_media: bool


class Manifest(BaseModel):
    """A namespace's manifest, as JSON in a text."""

    model_config = example(value='{"manifest_version": 1}')

    value: str


class Manifests(BaseModel):
    """Manifests of namespaces."""

    model_config = example(value=['{"manifest_version": 1}'])

    value: list[str]


class Found(BaseModel):
    """Where each block is, its fastest tier or ``null``, and its bytes; the lease is 0 where none is."""

    model_config = example(lease=1, lease_s=9.99, tiers=["host", None], nbytes=[1 << 20, None])

    lease: int
    lease_s: float
    tiers: list[str | None]
    nbytes: list[int | None]


class Reserved(BaseModel):
    """The number to send a block's bytes under; 0: it is not wanted."""

    model_config = example(reservation=1)

    reservation: int


class TierState(BaseModel):
    """A tier's state, ``ok``, ``degraded`` or ``unhealthy``, and why."""

    model_config = example(**_TIER)

    state: str
    reason: str


class StoreState(BaseModel):
    """The worst state of any tier, each tier's own, and what is wrong beyond them."""

    model_config = example(state="ok", reason="", tiers={"host": _TIER})

    state: str
    reason: str
    tiers: dict[str, TierState]


class Health(BaseModel):
    """How the store is."""

    model_config = example(value={"state": "ok", "reason": "", "tiers": {"host": _TIER}})

    value: StoreState


class TierCounts(BaseModel):
    """What a tier holds, and has counted since the start."""

    model_config = example(**_COUNTS)

    name: str
    budget_bytes: int
    used_bytes: int
    num_blocks: int
    counts: dict[str, int]
    groups: list[dict[str, Any]]
    pinned_bytes: int
    num_pinned: int


class StoreCounts(BaseModel):
    """What a store holds and has counted."""

    model_config = example(
        tiers=[_COUNTS], num_blocks_wanted=9, num_blocks_found=7, staging_bytes=0, num_quarantined=0, pins=[]
    )

    tiers: list[TierCounts]
    num_blocks_wanted: int
    num_blocks_found: int
    staging_bytes: int
    num_quarantined: int
    pins: list[dict[str, Any]]


class Statistics(BaseModel):
    """The store's statistics; a tenant is told nothing of others."""

    model_config = example(
        value={
            "tiers": [_COUNTS],
            "num_blocks_wanted": 9,
            "num_blocks_found": 7,
            "staging_bytes": 0,
            "num_quarantined": 0,
            "pins": [],
        }
    )

    value: StoreCounts


class Tiers(BaseModel):
    """Each block's fastest tier; ``null``: it is nowhere."""

    model_config = example(value=["host", None])

    value: list[str | None]


class Causes(BaseModel):
    """What became of each block: the cause, the tier where it was last, and when it left (epoch ms)."""

    model_config = example(value=[["evicted", "host", 1_767_225_600_250]])

    value: list[list[str | int]]


class Said(BaseModel):
    """Whether it is so."""

    model_config = example(value=True)

    value: bool


class Number(BaseModel):
    """How many."""

    model_config = example(value=3)

    value: int


class PinAnswer(BaseModel):
    """What was pinned; or only ``beyond``: the bound that it exceeds, and the bytes wanted and left."""

    model_config = example(
        tenant="",
        until_ms=1_900_000_000_000,
        num_blocks={"host": 2},
        charged_bytes=2 << 20,
        absent=[],
        beyond=None,
    )

    tenant: str = ""
    until_ms: int = 0
    num_blocks: dict[str, int] = {}
    charged_bytes: int = 0
    absent: list[str] = []
    beyond: tuple[str, int, int] | None = None


class Pinned(BaseModel):
    """What became of a wish to pin."""

    model_config = example(
        value={
            "tenant": "", "until_ms": 1_900_000_000_000, "num_blocks": {"host": 2}, "charged_bytes": 2 << 20,
            "absent": [], "beyond": None,
        }
    )  # fmt: skip

    value: PinAnswer


class Pinning(BaseModel):
    """Blocks of one tenant in one tier that are pinned until the same time (epoch ms)."""

    model_config = example(
        tenant="", tier="host", until_ms=1_900_000_000_000, num_blocks=2, charged_bytes=2 << 20
    )

    tenant: str
    tier: str
    until_ms: int
    num_blocks: int
    charged_bytes: int


class Pinnings(BaseModel):
    """What is pinned."""

    model_config = example(value=[])

    value: list[Pinning]


class PoolAnswer(BaseModel):
    """What an engine's own pool must let go of, of the epoch that it is to speak of."""

    model_config = example(epoch="5f" * 8, over=["0f" * 16], quarantined=[])

    epoch: str
    over: list[str]
    quarantined: list[str]


class PoolTold(BaseModel):
    """The answer to what was told of an engine's own pool."""

    model_config = example(value={"epoch": "5f" * 8, "over": [], "quarantined": []})

    value: PoolAnswer
