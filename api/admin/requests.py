"""Bodies of the routes that name blocks and say what to do with them."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from api.admin.fields import Bytes, Lifetime, TierName, TierNames
from api.admin.selection import EXAMPLE, Selection
from api.examples import body_example

_KEYS = {"keys": ["6b7d2c1e0f9a4b5c8d3e2f1a0b9c8d7e"]}
_MOST_EPOCH_S = 1e11


class SelectionFields(BaseModel):
    """A body that names blocks."""

    model_config = body_example({"selection": _KEYS})

    selection: Selection


class DryFields(SelectionFields):
    """A body that says whether to tell only what would be done."""

    model_config = body_example({"selection": EXAMPLE, "dry_run": True})

    dry_run: Annotated[bool, Field(description="Answer at once with what would be done, and do nothing.")] = (
        False
    )


class EvictFields(DryFields):
    """The body of ``POST /admin/evict``; without tiers blocks go from all."""

    model_config = body_example({"selection": EXAMPLE, "tiers": ["disk"], "dry_run": True})

    tiers: TierNames | None = None


class MoveFields(DryFields):
    """The body of ``POST /admin/move``; without a source blocks come from wherever they are."""

    model_config = body_example({"selection": EXAMPLE, "source": "host", "target": "disk", "dry_run": True})

    source: TierName | None = None
    target: TierName


class WarmFields(DryFields):
    """The body of ``POST /admin/warm``; without a target blocks go to the fastest tier."""

    model_config = body_example({"selection": EXAMPLE, "target": "host", "dry_run": True})

    target: TierName | None = None


class PinFields(SelectionFields):
    """The body of ``POST /admin/pins``: for how long, or until when (seconds of the epoch)."""

    model_config = body_example({"selection": _KEYS, "for_s": 3600.0, "tiers": ["disk"]})

    for_s: Lifetime | None = None
    until_s: Annotated[float, Field(gt=0, le=_MOST_EPOCH_S, allow_inf_nan=False)] | None = None
    tiers: TierNames | None = None


class UnpinFields(SelectionFields):
    """The body of ``POST /admin/unpin``."""

    model_config = body_example({"selection": _KEYS})

    tiers: TierNames | None = None


class TtlFields(SelectionFields):
    """The body of ``POST /admin/ttl``: how long blocks live from now (soft end), and at most (hard end)."""

    model_config = body_example({"selection": _KEYS, "ttl_s": 86400.0})

    ttl_s: Lifetime | None = None
    hard_ttl_s: Lifetime | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.ttl_s is None and self.hard_ttl_s is None:
            raise ValueError("give ttl_s, hard_ttl_s, or both")
        return self


class ClearTierFields(BaseModel):
    """The body of ``POST /admin/clear``; without a tier all are cleared."""

    model_config = body_example({"tier": "host"})

    tier: TierName | None = None


class DrainFields(BaseModel):
    """The body of ``POST /admin/tiers/{tier}/drain``; without a target what it has stays."""

    model_config = body_example({"target": "disk"}, {})

    target: TierName | None = None


class BudgetFields(BaseModel):
    """Bytes by tier; ``null`` takes a bound away, what is not named stays as it is."""

    model_config = body_example({"tiers": {"disk": 1 << 30, "host": None}})

    tiers: Annotated[dict[TierName, Bytes | None], Field(max_length=64)]


class QuotaFields(BudgetFields):
    """Likewise for a tenant, and how much it may pin in all tiers together."""

    model_config = body_example({"tiers": {"disk": 1 << 30}, "pin_bytes": 1 << 28})

    tiers: Annotated[dict[TierName, Bytes | None], Field(max_length=64)] = Field(default_factory=dict)
    pin_bytes: Bytes | None = None
