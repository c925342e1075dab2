"""What came of a change to blocks, or would come of it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from pydantic import BaseModel

from api.admin.views import Held
from api.examples import DIGEST, example, example_of
from kvstore.admin import outcome as told

_MOST_LISTED = 1000


class EffectView(BaseModel):
    """A block comes to a tier (``arrives``, ``demoted``) or goes from it (``leaves``, ``evicted``)."""

    model_config = example(kind="leaves", key=DIGEST, tier="disk", bytes=1 << 20)

    kind: str
    key: str
    tier: str
    bytes: int


class StayView(BaseModel):
    """A block that was meant stays as it is, and why."""

    model_config = example(key=DIGEST, tier="disk", why="in use", bytes=1 << 20)

    key: str
    tier: str
    why: str
    bytes: int


class OutcomeView(BaseModel):
    """What happened to the blocks that were meant, or would happen: by tier, and why others stay.

    ``leaves`` and ``arrives`` are as asked; ``evicted`` makes room, and ``demoted`` comes from there.
    ``effects`` and ``stays`` list them one by one, up to a thousand each; of other tenants' none.
    """

    model_config = example(
        num_selected=2, leaves={"disk": {"blocks": 1, "bytes": 1 << 20}}, arrives={}, evicted={}, demoted={},
        reasons={"in use": {"blocks": 1, "bytes": 1 << 20}}, effects=[example_of(EffectView)],
        stays=[example_of(StayView)], computed=0, is_cancelled=False,
    )  # fmt: skip

    num_selected: int
    leaves: dict[str, Held]
    arrives: dict[str, Held]
    evicted: dict[str, Held]
    demoted: dict[str, Held]
    reasons: dict[str, Held]
    effects: list[EffectView]
    stays: list[StayView]
    computed: int
    is_cancelled: bool


class BadCopyView(BaseModel):
    """A copy of a block that is not what was stored; it is gone."""

    model_config = example(key=DIGEST, tier="disk", reason="checksum differs")

    key: str
    tier: str
    reason: str


class VerificationView(BaseModel):
    """What verifying copies found. ``unsure`` lie in memory without a checksum; ``unread`` stay unread."""

    model_config = example(
        num_selected=2, verified=3, bytes=3 << 20, bad=[example_of(BadCopyView)], unsure=0, unread=0,
        is_cancelled=False,
    )  # fmt: skip

    num_selected: int
    verified: int
    bytes: int
    bad: list[BadCopyView]
    unsure: int
    unread: int
    is_cancelled: bool


class ImportedView(BaseModel):
    """What came in from a file, and what was not taken and why."""

    model_config = example(
        num_selected=2, stored=1, there=1, stays=[], namespaces=[DIGEST], is_cancelled=False
    )

    num_selected: int
    stored: int
    there: int
    stays: list[StayView]
    namespaces: list[str]
    is_cancelled: bool


class RetimedView(BaseModel):
    """How many blocks end otherwise now, and which of those named are not there."""

    model_config = example(blocks=64, absent=[])

    blocks: int
    absent: list[str]


def outcome_body(outcome: told.Outcome, tenant: str | None, num_computed: int = 0) -> dict[str, Any]:
    """Return what came of a change, as ``tenant`` may know it (``None``: an operator, all)."""
    kinds = told.Kind
    own = (effect for effect in outcome.effects if tenant in {None, effect.tenant})
    view = OutcomeView(
        num_selected=outcome.num_selected,
        leaves=_held(outcome.of(kinds.LEAVES)),
        arrives=_held(outcome.of(kinds.ARRIVES)),
        evicted=_held(outcome.of(kinds.EVICTED)),
        demoted=_held(outcome.of(kinds.DEMOTED)),
        reasons=_held(outcome.reasons()),
        effects=[_effect(effect) for effect in islice(own, _MOST_LISTED)],
        stays=[_stay(stay) for stay in outcome.stays[:_MOST_LISTED]],
        computed=num_computed,
        is_cancelled=outcome.is_cancelled,
    )
    return view.model_dump(mode="json")


def verification_body(found: told.Verification) -> dict[str, Any]:
    """Return what verifying found."""
    view = VerificationView(
        num_selected=found.num_selected,
        verified=found.num_verified,
        bytes=found.nbytes,
        bad=[BadCopyView(key=bad.key.hex(), tier=bad.tier, reason=bad.reason) for bad in found.bad],
        unsure=found.num_unsure,
        unread=found.num_unread,
        is_cancelled=found.is_cancelled,
    )
    return view.model_dump(mode="json")


def imported_body(found: told.Imported) -> dict[str, Any]:
    """Return what came in from a file."""
    view = ImportedView(
        num_selected=found.num_selected,
        stored=found.num_stored,
        there=found.num_there,
        stays=[_stay(stay) for stay in found.stays[:_MOST_LISTED]],
        namespaces=[digest.hex() for digest in found.namespaces],
        is_cancelled=found.is_cancelled,
    )
    return view.model_dump(mode="json")


def _held(amounts: Mapping[str, told.Amount]) -> dict[str, Held]:
    return {name: Held(blocks=amount.num_blocks, bytes=amount.nbytes) for name, amount in amounts.items()}


def _effect(effect: told.Effect) -> EffectView:
    return EffectView(kind=effect.kind.value, key=effect.key.hex(), tier=effect.tier, bytes=effect.nbytes)


def _stay(stay: told.Stay) -> StayView:
    return StayView(key=stay.key.hex(), tier=stay.tier, why=stay.why.value, bytes=stay.nbytes)
