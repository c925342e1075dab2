"""Whether what is said of blocks comes true, learnt from blocks of which it was said.

Pure: what became of watched blocks goes in, yes or no comes out.
"""

from __future__ import annotations

from collections import OrderedDict
from math import log2
from typing import NamedTuple
from zlib import crc32

from kvstore.hints import Hint

_MOST_WATCHED = 1024
_MOST_CLAIMS = 256
_FADE = 255 / 256
"""What was seen before weighs so much at the next sight of the same claim."""
_DOUBT = 8.0
"""As if so many hints had been wrong before the first one, and so many victims had stayed away."""
_MARGIN = 2.0
_LONGEST_PAUSE = 10

Claim = tuple[bool, int | None, str | None]
"""What a hint says, with the pause in steps of four times as long: what is alike is believed alike."""


def claim_of(hint: Hint) -> Claim:
    """Return what ``hint`` says, roughly."""
    if hint.pause_s is None:
        return hint.ends_session, None, hint.stop
    step = 0 if hint.pause_s < 1 else min(_LONGEST_PAUSE, 1 + int(log2(hint.pause_s)) // 2)
    return hint.ends_session, step, hint.stop


class Returns:
    """How many blocks came back, of those watched; older ones fade."""

    __slots__ = ("_back", "_blocks", "_hints")

    def __init__(self) -> None:
        self._hints = self._blocks = self._back = 0.0

    def add(self, num_blocks: int, *, is_back: bool) -> None:
        """Take in what became of ``num_blocks``, for which one was watched."""
        self._hints = _FADE * self._hints + 1
        self._blocks = _FADE * self._blocks + num_blocks
        self._back = _FADE * self._back + num_blocks * is_back

    def share(self, *, doubt: float) -> float:
        """Return the share that came back, as if so many more had been watched and had come back too."""
        share = self._back / self._blocks if self._blocks else 0.0
        return (share * self._hints + max(0.0, doubt)) / (self._hints + abs(doubt))


class _Watched(NamedTuple):
    """A block that stands for ``num_blocks``; when it was said or went, by the number gone by then."""

    returns: Returns
    num_blocks: int
    num_gone: int


class Belief:
    """What claims are worth, by what became of blocks that were left to the policy. Not thread-safe.

    Of each hint one block is a witness: it counts as come back if it is used again before the policy lets
    it go, or would have, or soon after. Of the policy's own victims a sample, chosen by key, is
    watched: they count as come back if that is soon after they went. Soon is within as many further
    departures as witnesses that are not used wait for their own in the mean. A claim is believed while
    blocks of which it was made come back less than half as often as victims do: then room is better given
    to these. All that is kept is bounded.
    """

    def __init__(self) -> None:
        self._claims: dict[Claim, Returns] = {}
        self._own_victims = Returns()
        self._witnesses: dict[bytes, _Watched] = {}
        self._gone: OrderedDict[bytes, _Watched] = OrderedDict()
        self._share = 1 << 32
        self._num_gone = 0
        self._wait = 0.0

    def watch(self, key: bytes, claim: Claim, num_blocks: int) -> None:
        """Let ``key`` be the witness for ``num_blocks`` of which ``claim`` was made."""
        returns = self._claims.get(claim)
        if returns is None and len(self._claims) < _MOST_CLAIMS:
            returns = self._claims[claim] = Returns()
        if returns is not None and len(self._witnesses) < _MOST_WATCHED:
            self._witnesses[key] = _Watched(returns, num_blocks, self._num_gone)

    def believes(self, claim: Claim) -> bool:
        """Say whether blocks of which ``claim`` is made should go before the policy's own victims."""
        returns = self._claims.get(claim)
        if returns is None:
            return False
        return _MARGIN * returns.share(doubt=_DOUBT) < self._own_victims.share(doubt=-_DOUBT)

    def used(self, key: bytes) -> None:
        """Note that a resident block is used."""
        if witness := self._witnesses.pop(key, None):
            witness.returns.add(witness.num_blocks, is_back=True)

    def came(self, key: bytes) -> None:
        """Note that a block is inserted."""
        if gone := self._gone.pop(key, None):
            away = self._num_gone - gone.num_gone
            gone.returns.add(gone.num_blocks, is_back=not 0 < self._wait < away)

    def went(self, key: bytes) -> None:
        """Note that a block that was left to the policy has gone."""
        self._num_gone += 1
        if witness := self._witnesses.pop(key, None):
            waited = self._num_gone - witness.num_gone
            self._wait = _FADE * self._wait + (1 - _FADE) * waited if self._wait else waited
            self._gone[key] = witness._replace(num_gone=self._num_gone)
        elif crc32(key) < self._share:
            self._gone[key] = _Watched(self._own_victims, 1, self._num_gone)
        self._give_up()

    def went_first(self, key: bytes) -> None:
        """Note that a block has gone because a claim was believed; left alone, it would have waited first."""
        self._num_gone += 1
        if witness := self._witnesses.pop(key, None):
            self._gone[key] = witness._replace(num_gone=self._num_gone + int(self._wait))
        self._give_up()

    def _give_up(self) -> None:
        """Watch no longer who has been away for long, and not more than is bounded."""
        if len(self._gone) > _MOST_WATCHED:
            self._halve_sample()
        while self._gone:
            key, gone = next(iter(self._gone.items()))
            is_over = 0 < self._wait < self._num_gone - gone.num_gone
            if not is_over and len(self._gone) <= 2 * _MOST_WATCHED:
                return
            del self._gone[key]
            gone.returns.add(gone.num_blocks, is_back=False)

    def _halve_sample(self) -> None:
        """Watch half as many of the policy's own victims from now on."""
        self._share //= 2
        for key, gone in list(self._gone.items()):
            if gone.returns is self._own_victims and crc32(key) >= self._share:
                del self._gone[key]
