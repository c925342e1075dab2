"""What is told of decisions: plans and what came of them, misses and their causes, shadow policies."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from api.admin.fields import Listed, list_of
from api.examples import AT, example, example_of
from api.setting_types import ModeName

_PREDICTED = {
    "policy": "measured", "chosen": "both", "reason": "loading the tail while the head is computed",
    "tokens_by_tier": {"disk": 1024}, "predicted_ttft_s": 0.12, "if_computed_s": 0.4, "if_loaded_s": 0.2,
}  # fmt: skip


class ModeView(BaseModel):
    """The mode of requests that name none."""

    model_config = example(mode="serve")

    mode: ModeName


class PredictedView(BaseModel):
    """What is planned for a prompt; times are seconds from the moment of planning."""

    model_config = example(**_PREDICTED)

    policy: str
    chosen: str
    reason: str
    tokens_by_tier: dict[str, int]
    predicted_ttft_s: float
    if_computed_s: float
    if_loaded_s: float


class PlanView(PredictedView):
    """What was planned for a request, and what came of it."""

    model_config = example(**_PREDICTED, mode="serve", actual_s=0.13, num_plans=1, num_failed=0)

    mode: ModeName
    actual_s: float | None
    num_plans: int
    num_failed: int


class DifferenceView(BaseModel):
    """A field in which another namespace differs."""

    model_config = example(field="kv_dtype", here="float32", there="bfloat16")

    field: str
    here: Any
    there: Any


class MissView(BaseModel):
    """Why the first missing block is missing."""

    model_config = example(
        block=4, first_token=64, cause="evicted", tier="host", left_at=AT, differences=[],
        namespaces_not_searched=0, sentence="block 4, from token 64 on, was evicted from host",
    )  # fmt: skip

    block: int
    first_token: int
    cause: str
    tier: str | None
    left_at: float | None
    differences: list[DifferenceView]
    namespaces_not_searched: int
    sentence: str


class AccountView(BaseModel):
    """A request that has ended, and what was decided about it."""

    model_config = example(
        number=7, ended_at=AT, ended="stop", namespace="SmolLM2-135M-Instruct", mode="serve",
        prompt_tokens=1100, tokens_by_source={"computed": 76, "disk": 1024}, ttft_s=0.14,
        reason=_PREDICTED["reason"], plan=example_of(PlanView), miss=example_of(MissView),
    )  # fmt: skip

    number: int
    ended_at: float
    ended: str
    namespace: str
    mode: ModeName
    prompt_tokens: int
    tokens_by_source: dict[str, int]
    ttft_s: float | None
    reason: str
    plan: PlanView | None
    miss: MissView | None


class AccountList(Listed[AccountView]):
    """Requests that have ended, the latest first."""

    model_config = list_of(AccountView)


class RunView(BaseModel):
    """Blocks next to each other in the same place; ``choice`` is ``share``, ``load`` or ``compute``."""

    model_config = example(first_block=0, num_blocks=64, tier="disk", choice="load")

    first_block: int
    num_blocks: int
    tier: str | None
    choice: str


class CostView(BaseModel):
    """What loading from a tier costs now."""

    model_config = example(latency_s=0.001, bytes_per_s=2e9, queue_s=0.0)

    latency_s: float
    bytes_per_s: float
    queue_s: float


class ExplanationView(BaseModel):
    """What would be done with a prompt now, were it alone, and why."""

    model_config = example(
        namespace="SmolLM2-135M-Instruct", mode="serve", prompt_tokens=1100, block_tokens=16,
        reason=_PREDICTED["reason"], plan=_PREDICTED, blocks=[example_of(RunView)],
        costs={"disk": example_of(CostView)}, miss=None,
    )  # fmt: skip

    namespace: str
    mode: ModeName
    prompt_tokens: int
    block_tokens: int
    reason: str
    plan: PredictedView
    blocks: list[RunView]
    costs: dict[str, CostView]
    miss: MissView | None


class ShadowTierView(BaseModel):
    """What other eviction policies would have hit in one tier; shares from 0 to 1."""

    model_config = example(live="lru", hit_ratios={"lru": 0.61, "reuse": 0.68}, regret=0.07, sample_rate=0.1)

    live: str
    hit_ratios: dict[str, float]
    regret: float
    sample_rate: float


class ShadowsView(BaseModel):
    """What shadow policies found, and what they took of a core."""

    model_config = example(tiers={"host": example_of(ShadowTierView)}, core_share=0.004, num_dropped=0)

    tiers: dict[str, ShadowTierView]
    core_share: float
    num_dropped: int


class RecordingView(BaseModel):
    """How far the recording of a trace has come; ``trouble`` is what has ended it."""

    model_config = example(file="trace.jsonl", num_recorded=60, num_dropped=0, trouble=None)

    file: str
    num_recorded: int
    num_dropped: int
    trouble: str | None


class LearningView(BaseModel):
    """What is learnt from traffic; ``null`` where it is not."""

    model_config = example(shadows=example_of(ShadowsView), recording=None)

    shadows: ShadowsView | None
    recording: RecordingView | None
