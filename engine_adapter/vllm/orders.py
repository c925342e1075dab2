"""What the scheduler's side tells the workers for one step, and what they tell it: plain data to be sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kvstore.namespace import Namespace


class Scope(NamedTuple):
    """What else than its tokens makes a request's keys and values: digests, not the secrets themselves."""

    lora: str = ""
    salt: str = ""


@dataclass(frozen=True, slots=True)
class LoadOrder:
    """Load these blocks of a request into vLLM's pool.

    ``keys[rank][i]`` is to come to ``block_ids[i]``. A load that has taken longer than ``worth_s[n]`` and
    ``patience_s`` with ``n`` blocks here loses to computing: ``worth_s[n]`` is what computing these takes.
    """

    request_id: str
    keys: tuple[tuple[bytes, ...], ...]
    block_ids: tuple[int, ...]
    is_async: bool
    worth_s: tuple[float, ...] = ()
    patience_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StoreOrder:
    """Store these blocks of a request once the step has computed them.

    With ``is_compared`` those that are stored already are compared with what was computed.

    ``keys[rank][i]`` is that of the block at ``block_ids[i]``, whose first token is ``first_token`` plus
    ``i`` blocks; ``parents`` are the keys before the first one (empty: there is none).
    """

    request_id: str
    namespaces: tuple[Namespace, ...]
    keys: tuple[tuple[bytes, ...], ...]
    parents: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    first_token: int
    is_compared: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """All orders of one step, and its number. An idle one computes nothing."""

    number: int = 0
    loads: tuple[LoadOrder, ...] = ()
    stores: tuple[StoreOrder, ...] = ()
    is_idle: bool = False


class Arrived(NamedTuple):
    """One block that was loaded, in seconds of the monotonic clock."""

    tier: str
    asked_s: float
    arrived_s: float
    nbytes: int


class GivenUp(NamedTuple):
    """One block that was asked for and not waited for any longer."""

    tier: str
    asked_s: float
    given_up_s: float
    nbytes: int


@dataclass(slots=True)
class Told:
    """What a worker tells of step ``number``: what came from where, and how long the step waited for it.

    ``stored`` are the keys of blocks that were stored.
    """

    number: int = 0
    arrived: list[Arrived] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)
    copies_s: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    stored: list[bytes] = field(default_factory=list)

    def add(self, other: Told) -> None:
        """Take in what another worker tells; all wait at the same time."""
        self.arrived += other.arrived
        self.given_up += other.given_up
        self.copies_s += other.copies_s
        self.stored += other.stored
        self.waited_s = max(self.waited_s, other.waited_s)
        for name, amount in other.counts.items():
            self.count(name, amount)

    def count(self, name: str, amount: int = 1) -> None:
        """Count something that happened."""
        self.counts[name] = self.counts.get(name, 0) + amount
