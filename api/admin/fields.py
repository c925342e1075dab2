"""What the administration's requests and answers are made of: digests, times, lists in pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from api.examples import DIGEST, example, example_of
from kvstore.remote.wire import MOST_KEYS
from kvstore.retention import MAX_LIFETIME_S

UNSALTED = "unsalted"
"""In place of a tenant: of requests without a salt."""

Key = Annotated[str, Field(pattern=r"^([0-9a-f]{2}){1,32}$", max_length=64, examples=[DIGEST])]
Keys = Annotated[list[Key], Field(min_length=1, max_length=MOST_KEYS)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$", examples=[DIGEST])]
TierName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[\w.-]+$", examples=["disk"])]
TierNames = Annotated[list[TierName], Field(min_length=1, max_length=64)]
Lifetime = Annotated[float, Field(gt=0, le=MAX_LIFETIME_S, allow_inf_nan=False, examples=[3600.0])]
Age = Annotated[float, Field(ge=0, le=MAX_LIFETIME_S, allow_inf_nan=False, examples=[60.0])]
Bytes = Annotated[int, Field(ge=0, le=2**50, examples=[1 << 30])]
Limit = Annotated[int, Field(ge=1, le=1000)]
Cursor = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[0-9a-f]+$")]

_T = TypeVar("_T", bound=BaseModel)
_Entry = TypeVar("_Entry")


def list_of(model: type[BaseModel]) -> ConfigDict:
    """Return the configuration of a list of such."""
    return example(data=[example_of(model)], next_cursor=None, total=1)


class Listed(BaseModel, Generic[_T]):
    """A page of a list. ``next_cursor`` asks for the next one; ``total`` counts all pages' entries."""

    data: list[_T]
    next_cursor: str | None
    total: int


def tenant_name(tenant: str) -> str:
    """Return what a tenant is called in requests and answers: its digest, or a word for nobody's."""
    return tenant or UNSALTED


def seconds(epoch_ms: int | None) -> float | None:
    """Return seconds for milliseconds of the epoch; 0 and ``None`` are no time."""
    return epoch_ms / 1000 if epoch_ms else None


def page(entries: Sequence[_Entry], cursor: str | None, limit: int) -> tuple[Sequence[_Entry], str | None]:
    """Return a part of a list that stands in an order of its own, and where the next one begins."""
    start = int(cursor, 16) if cursor else 0
    end = start + limit
    return entries[start:end], f"{end:x}" if end < len(entries) else None
