"""What the store knows of one block."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvstore.frame import NEVER_MS, Expiry, Header

UNKNOWN_MS = -1
"""The soft limit of a block of which a tier has only said that it holds it; it lives until told."""


@dataclass(slots=True)
class Record:
    """One block.

    ``num_holds`` counts leases, loads, writes and lent bytes: while it is not zero no tier evicts
    the block. ``checksum`` is the xxh3 of its bytes in our own memory, ``None`` until known: those
    of another tier may have been computed at another time and differ in their last bits.
    ``tiers`` are those that have it, as a mask; ``unreadable`` those whose copy is in a form that cannot
    be read here: it is never found, but counts, ends and is evicted like the others.
    ``first_token`` is the position of the block's first token in its prompt, ``None`` until known.
    """

    key: bytes
    parent: bytes
    namespace: bytes = b""
    block_tokens: int = 0
    raw_bytes: int = 0
    created_ms: int = 0
    soft_ms: int = NEVER_MS
    hard_ms: int = NEVER_MS
    checksum: int | None = None
    tiers: int = 0
    unreadable: int = 0
    num_holds: int = 0
    first_token: int | None = None

    @property
    def charged(self) -> int:
        """The tiers on whose medium it lies, in whatever form, as a mask."""
        return self.tiers | self.unreadable

    @property
    def is_nowhere(self) -> bool:
        """Whether no tier has it and nobody holds it."""
        return not (self.charged or self.num_holds)

    @property
    def expiry(self) -> Expiry:
        """Both limits, as a frame header carries them."""
        return Expiry(max(self.soft_ms, NEVER_MS), self.hard_ms)

    def complete_from(self, facts: Record) -> None:
        """Take over what a tier knows; one that keeps its own books reports key and parent alone."""
        self.extend(facts.soft_ms)
        if self.first_token is None:
            self.first_token = facts.first_token
        if not self.raw_bytes:
            self.parent, self.namespace, self.block_tokens = facts.parent, facts.namespace, facts.block_tokens
            self.raw_bytes, self.created_ms, self.hard_ms = facts.raw_bytes, facts.created_ms, facts.hard_ms

    def copy(self) -> Record:
        """Return what is known of the block's bytes, for a transfer: in no tier, held by nobody."""
        return replace(self, tiers=0, unreadable=0, num_holds=0)

    def is_expired(self, now_ms: int) -> bool:
        """Say whether either limit has passed."""
        return 0 < self.soft_ms <= now_ms or 0 < self.hard_ms <= now_ms

    def extend(self, soft_ms: int) -> None:
        """Combine with another request's soft limit: the latest wins, never beats all."""
        if self.soft_ms == UNKNOWN_MS:
            self.soft_ms = soft_ms
        elif self.soft_ms:
            self.soft_ms = max(self.soft_ms, soft_ms) if soft_ms else NEVER_MS


def record_of(header: Header) -> Record:
    """Return what a stored block's header says of it: in no tier, held by nobody."""
    return Record(
        header.key, header.parent, header.namespace, header.block_tokens, header.raw_bytes,
        header.created_ms, header.expiry.soft_ms, header.expiry.hard_ms,
    )  # fmt: skip
