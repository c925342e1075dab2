"""What is told of the audit in idle time, and what it can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, Field

from api.admin.fields import seconds, tenant_name
from api.examples import AT, DIGEST, body_example, example

if TYPE_CHECKING:  # a store alone needs no torch
    from engine_adapter.engine.audit import Audit, WrongCopy

_WRONG = {
    "key": DIGEST, "block": 12, "tier": "disk", "namespace": DIGEST, "label": "tiny-llama",
    "tenant": "unsalted", "found_at": AT,
}  # fmt: skip


class AuditFields(BaseModel):
    """The body of ``PUT /admin/audit``."""

    model_config = body_example({"share": 0.05})

    share: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class WrongCopyView(BaseModel):
    """A stored block that was not what its tokens give; ``block`` is its place in the prompt."""

    model_config = example(**_WRONG)

    key: str
    block: int
    tier: str
    namespace: str
    label: str
    tenant: str
    found_at: float

    @classmethod
    def of(cls, wrong: WrongCopy) -> WrongCopyView:
        """Return what is told of a copy that was wrong."""
        return cls(
            key=wrong.key.hex(), block=wrong.block, tier=wrong.tier, namespace=wrong.namespace.hex(),
            label=wrong.label, tenant=tenant_name(wrong.tenant), found_at=wrong.at_ms / 1000,
        )  # fmt: skip


class AuditView(BaseModel):
    """What was computed once more and compared in idle time since the start.

    A block that two tiers hold is two copies. ``coverage`` is the share of the copies stored now that were
    compared.
    """

    model_config = example(
        share=0.02, prompts=37, memory_bytes=210_432, compared_blocks=5120, compared_bytes=3_355_443_200,
        wrong_blocks=1, failures=0, last_at=AT, coverage=0.81, spent_s=41.5, idle_s=2110.0,
        last_wrong=[_WRONG],
    )  # fmt: skip

    share: float
    prompts: int
    memory_bytes: int
    compared_blocks: int
    compared_bytes: int
    wrong_blocks: int
    failures: int
    last_at: float | None
    coverage: float
    spent_s: float
    idle_s: float
    last_wrong: list[WrongCopyView]

    @classmethod
    def of(cls, audit: Audit) -> AuditView:
        """Return what is told of what was found."""
        return cls(
            share=audit.share,
            prompts=audit.num_prompts,
            memory_bytes=audit.memory_bytes,
            compared_blocks=audit.num_compared,
            compared_bytes=audit.compared_bytes,
            wrong_blocks=audit.num_wrong,
            failures=audit.num_failed,
            last_at=seconds(audit.last_at_ms),
            coverage=audit.coverage,
            spent_s=audit.spent_s,
            idle_s=audit.idle_s,
            last_wrong=[WrongCopyView.of(wrong) for wrong in audit.last_wrong],
        )
