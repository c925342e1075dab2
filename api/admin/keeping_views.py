"""What the administration tells of pins and quotas."""

from __future__ import annotations

from pydantic import BaseModel

from api.admin.fields import Listed, list_of
from api.examples import AT, DIGEST, example, example_of


class PinView(BaseModel):
    """Blocks of one tenant that are pinned in one tier until the same time."""

    model_config = example(tenant=DIGEST, tier="disk", until=AT, blocks=64, bytes=64 << 20)

    tenant: str
    tier: str
    until: float
    blocks: int
    bytes: int


class PinList(Listed[PinView]):
    """Pins, those that end first first."""

    model_config = list_of(PinView)


class PinnedView(BaseModel):
    """What was pinned: blocks by tier, those that others follow included; ``absent`` ones are nowhere."""

    model_config = example(tenant=DIGEST, until=AT, blocks={"disk": 64}, charged_bytes=64 << 20, absent=[])

    tenant: str
    until: float
    blocks: dict[str, int]
    charged_bytes: int
    absent: list[str]


class UnpinnedView(BaseModel):
    """How many blocks were pinned and are ordinary now; one in two tiers counts twice."""

    model_config = example(blocks=64)

    blocks: int


class UsageView(BaseModel):
    """What is used of a quota in one tier."""

    model_config = example(quota_bytes=1 << 30, used_bytes=64 << 20, blocks=64)

    quota_bytes: int
    used_bytes: int
    blocks: int


class QuotaView(BaseModel):
    """A tenant's quotas by tier, and its pins; ``others`` are those without a rule of their own."""

    model_config = example(
        tenant=DIGEST, tiers={"disk": example_of(UsageView)}, pin_bytes=1 << 28, pinned_bytes=0
    )

    tenant: str
    tiers: dict[str, UsageView]
    pin_bytes: int
    pinned_bytes: int


class QuotaList(Listed[QuotaView]):
    """Quotas: of those that the rules name, and of the largest others."""

    model_config = list_of(QuotaView)


class BudgetView(BaseModel):
    """The bytes that a namespace may have, by tier."""

    model_config = example(digest=DIGEST, tiers={"disk": 1 << 30})

    digest: str
    tiers: dict[str, int]


class DrainingView(BaseModel):
    """The tiers that take no new blocks."""

    model_config = example(draining=["disk"])

    draining: list[str]
