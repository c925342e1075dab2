"""What is told of the audit in idle time, and what it can be told."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from api.examples import AT, DIGEST, body_example, example

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
