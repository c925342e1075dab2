"""What steps and loads cost on this machine now, learnt from every one of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kvstore.seams import Offer, Transfer
from policies.contention import Contention
from policies.cost_model import ComputeCost, LoadCost, Work
from policies.lines import Arrival, Line, LineState, Smoothed
from policies.steps import Step, StepCosts

_LEAST_WINDOW_BLOCKS = 2
MOST_BLOCKS_ON_WAY = 128
"""Of one tier; staging memory should hold as many."""
_MOST_UNREAD = 4096
_PATIENCE = 4.0
_PATIENCE_S = 0.25


@dataclass(frozen=True)
class KnownCosts:
    """What is kept of costs between runs."""

    steps: tuple[Step, ...] = ()
    lines: Mapping[str, LineState] = field(default_factory=dict)
    loaded_byte_s: float = 0.0


class _Told(NamedTuple):
    compute: ComputeCost
    lines: dict[str, LineState]


class CostBook:
    """Collects steps, transfers and copies, and says what the next ones cost.

    ``note_transfer`` and ``is_never_faster`` may be called from any thread; all else is for the engine's.
    A tier in our own memory (``memory_tier``) has no line: its blocks are copied by the engine's thread.
    """

    def __init__(
        self,
        block_bytes: int,
        memory_tier: str | None = None,
        known: KnownCosts | None = None,
        chunk_tokens: int = 512,
    ) -> None:
        """``chunk_tokens`` is the most that a step computes."""
        known = known or KnownCosts()
        self._block_bytes = block_bytes
        self._memory_tier = memory_tier
        self._steps = StepCosts(known.steps)
        self._lines = {tier: Line(state) for tier, state in known.lines.items()}
        self._contention = Contention(known.loaded_byte_s)
        self._copies = Smoothed()
        self._chunk_tokens = chunk_tokens
        self._told: _Told | None = None
        self._unread: deque[Transfer] = deque(maxlen=_MOST_UNREAD)

    def note_transfer(self, transfer: Transfer) -> None:
        """Take note of a block read from a medium; never blocks."""
        if transfer.raw_bytes > 0:  # what is empty has no rate
            self._unread.append(transfer)

    def note_step(self, work: Work, took_s: float, now_s: float) -> None:
        """Take note of a step that was made, and has just ended."""
        began_s = now_s - took_s
        loaded_bytes = sum(transfer.raw_bytes for transfer in self._read() if transfer.arrived_s > began_s)
        is_beside_loads = self._contention.is_beside_loads(loaded_bytes)
        if is_beside_loads and (cost := self._steps.cost()) is not None:
            self._contention.learn(took_s, cost.of(work), loaded_bytes)
        else:
            self._steps.learn((Step(work, took_s),))

    def note_copy(self, took_s: float, now_s: float) -> None:
        """Take note of a block that was copied from our own memory to the device."""
        self._copies.add(self._block_bytes / max(took_s, 1e-9), now_s)

    def asked(self, tier: str, token: object, now_s: float) -> None:
        """Note that a block was asked for; ``token`` names the load until it ends."""
        self._line(tier).asked(token, self._block_bytes, now_s)

    def ended(self, tier: str, token: object) -> None:
        """Note that a load has reported."""
        self._line(tier).ended(token)

    def given_up(self, tier: str, token: object, now_s: float) -> None:
        """Note that a load was given up."""
        self._line(tier).given_up(token, now_s)

    def compute(self) -> ComputeCost | None:
        """Return what steps cost; ``None`` before the first one."""
        cost = self._steps.cost()
        if cost is None:
            return None
        copy_s = 1 / self._copies.value if self._copies.value else 0.0
        return replace(cost, loaded_byte_s=self._contention.byte_s + copy_s)

    def loads(self, now_s: float) -> dict[str, LoadCost]:
        """Return what each tier's next loads cost, for those of which anything is known."""
        self._read()
        costs = {tier: line.cost(now_s) for tier, line in self._lines.items()}
        if self._memory_tier is not None and self._copies.value is not None:
            costs[self._memory_tier] = LoadCost(0.0, self._copies.value)
        loads = {tier: cost for tier, cost in costs.items() if cost is not None}
        compute = self.compute()
        self._told = None if compute is None else _Told(compute, self._states())
        return loads

    def is_never_faster(self, offer: Offer) -> bool:
        """Say whether loading a block would be of no use, by what is known now; from any thread.

        So it is where the load takes longer than to compute the whole prompt up to there, and keeps
        its line longer than computing keeps the device.
        """
        told = self._told
        if told is None or offer.first_token is None or offer.tier not in told.lines:
            return False
        compute, load = told.compute, told.lines[offer.tier]
        line_s = self._block_bytes / load.bytes_per_s
        end = offer.first_token + offer.block_tokens
        until_there_s = compute.step_s + compute.marginal_s(0, end)
        return load.latency_s + line_s > until_there_s and line_s > compute.marginal_s(offer.first_token, end)

    def stale(self, now_s: float) -> frozenset[str]:
        """Return the tiers of which nothing was heard for long."""
        return frozenset(tier for tier, line in self._lines.items() if line.is_stale(now_s))

    def has_room(self, tier: str) -> bool:
        """Say whether one more block may be asked of a tier.

        What is on its way is what the line holds (twice latency times rate) and what arrives during the
        longest step, after which the engine asks again; bounded, for it all needs staging memory.
        """
        if tier == self._memory_tier:
            return True
        line = self._line(tier)
        window = _LEAST_WINDOW_BLOCKS + self._ahead_bytes(line.state) / self._block_bytes
        return line.bytes_on_way < min(window, MOST_BLOCKS_ON_WAY) * self._block_bytes

    def _ahead_bytes(self, state: LineState | None) -> float:
        if state is None or self._told is None:
            return 0.0
        step_s = self._told.compute.of(Work.prefill(0, self._chunk_tokens))
        return state.bytes_per_s * (2 * state.latency_s + step_s)

    def overdue_s(self, tier: str, now_s: float) -> float:
        """Return after how many seconds a load asked for now is so late that something must be wrong."""
        cost = self._line(tier).cost(now_s)
        return math.inf if cost is None else _PATIENCE_S + _PATIENCE * cost.load_s(self._block_bytes)

    def known(self) -> KnownCosts:
        """Return what is worth keeping for the next run."""
        self._read()
        return KnownCosts(tuple(self._steps.typical()), self._states(), self._contention.byte_s)

    def learn_arrivals(self, tier: str, arrivals: Iterable[Arrival]) -> None:
        """Take blocks in that were read to measure a tier."""
        self._line(tier).learn(arrivals)

    def _states(self) -> dict[str, LineState]:
        states = {tier: line.state for tier, line in self._lines.items()}
        return {tier: state for tier, state in states.items() if state is not None}

    def _line(self, tier: str) -> Line:
        return self._lines.setdefault(tier, Line())

    def _read(self) -> list[Transfer]:
        """Learn from the transfers that were noted since, and return them."""
        transfers = [self._unread.popleft() for _ in range(len(self._unread))]
        arrivals: dict[str, list[Arrival]] = {}
        for transfer in transfers:
            arrival = Arrival(transfer.asked_s, transfer.arrived_s, transfer.raw_bytes)
            arrivals.setdefault(transfer.tier, []).append(arrival)
        for tier, arrived in arrivals.items():
            self._line(tier).learn(arrived)
        return transfers
