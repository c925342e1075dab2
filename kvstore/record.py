"""What the store knows of one block."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvstore.frame import NEVER_MS, Header

FOREVER_MS = 1 << 62
"""An end that never comes, in a record; a header says ``NEVER_MS``."""


@dataclass(slots=True)
class Record:
    """One block. Its times are epoch milliseconds of the wall clock.

    ``num_holds`` counts leases, loads, writes and lent bytes: while it is not zero no tier evicts
    the block. ``checksum`` is the xxh3 of its bytes in our own memory, ``None`` until known: those
    of another tier may have been computed at another time and differ in their last bits.
    ``tiers`` are those that have it, as a mask; ``unreadable`` those whose copy is in a form that cannot
    be read here: it is never found, but counts, ends and is evicted like the others; ``over`` those in
    which its time is over and that have not let go of it yet.
    ``first_token`` is the position of the block's first token in its prompt, ``None`` until known.
    ``num_hits`` are the lookups that found it since this process knows it, ``hit_ms`` the last of them.

    ``named_ms`` is the latest soft end that a request or a rule named, ``used_ms`` the last use that
    named none, from which each tier's default counts; both are 0 for a block of which a tier has only
    said that it holds it: it has no soft end until one is told. ``hard_ms`` is the earliest hard end.
    Until ``sure_ms`` it is alive in all its tiers, without looking closer (``Defaults``). What its headers
    on the media say are ``kept_named_ms``, ``kept_used_ms`` and ``kept_hard_ms``.
    """

    key: bytes
    parent: bytes
    namespace: bytes = b""
    block_tokens: int = 0
    raw_bytes: int = 0
    created_ms: int = 0
    named_ms: int = 0
    used_ms: int = 0
    hard_ms: int = FOREVER_MS
    sure_ms: int = 0
    kept_named_ms: int = 0
    kept_used_ms: int = 0
    kept_hard_ms: int = FOREVER_MS
    checksum: int | None = None
    tiers: int = 0
    unreadable: int = 0
    over: int = 0
    num_holds: int = 0
    first_token: int | None = None
    num_hits: int = 0
    hit_ms: int = 0

    @property
    def charged(self) -> int:
        """The tiers on whose medium it lies, in whatever form, as a mask."""
        return self.tiers | self.unreadable | self.over

    @property
    def is_nowhere(self) -> bool:
        """Whether no tier has it and nobody holds it."""
        return not (self.charged or self.num_holds)

    @property
    def last_use_ms(self) -> int:
        """The last use that is known: its storing, or a hit."""
        return max(self.created_ms, self.used_ms, self.hit_ms)

    @property
    def is_gone(self) -> bool:
        """Whether its time is over in all tiers that still have it."""
        return bool(self.over) and not self.tiers

    def complete_from(self, facts: Record) -> None:
        """Take over what a tier knows; one that keeps its own books reports little."""
        self.named_ms = max(self.named_ms, facts.named_ms)
        self.used_ms = max(self.used_ms, facts.used_ms)
        self.hard_ms = min(self.hard_ms, facts.hard_ms)
        self.num_hits, self.hit_ms = max(self.num_hits, facts.num_hits), max(self.hit_ms, facts.hit_ms)
        if not self.kept_named_ms and not self.kept_used_ms:
            self._keep_as(facts)
        self.created_ms = min(self.created_ms or facts.created_ms, facts.created_ms or self.created_ms)
        if self.first_token is None:
            self.first_token = facts.first_token
        self.namespace = self.namespace or facts.namespace
        if facts.raw_bytes and not self.raw_bytes:
            self.parent, self.block_tokens, self.raw_bytes = facts.parent, facts.block_tokens, facts.raw_bytes

    def note_kept(self) -> None:
        """Note that its headers are, or will be, in line with it."""
        self.kept_named_ms, self.kept_used_ms, self.kept_hard_ms = self.named_ms, self.used_ms, self.hard_ms

    def begin_anew(self, facts: Record) -> None:
        """Be the block of ``facts``, stored after this one's time was over: nothing of its life counts."""
        self.parent, self.namespace = facts.parent, facts.namespace
        self.block_tokens, self.raw_bytes = facts.block_tokens, facts.raw_bytes
        self.created_ms, self.named_ms, self.used_ms = facts.created_ms, facts.named_ms, facts.used_ms
        self.hard_ms, self.sure_ms, self.first_token = facts.hard_ms, 0, facts.first_token
        self.num_hits, self.hit_ms = facts.num_hits, facts.hit_ms
        self._keep_as(facts)

    def _keep_as(self, facts: Record) -> None:
        self.kept_named_ms, self.kept_used_ms = facts.kept_named_ms, facts.kept_used_ms
        self.kept_hard_ms = facts.kept_hard_ms

    def copy(self) -> Record:
        """Return what is known of the block's bytes, for a transfer: in no tier, held by nobody."""
        return replace(self, tiers=0, unreadable=0, over=0, num_holds=0)


def record_of(header: Header) -> Record:
    """Return what a stored block's header says of it: in no tier, held by nobody. Its end is a named one."""
    named_ms, hard_ms = ends_in(header.expiry.soft_ms), ends_in(header.expiry.hard_ms)
    return Record(
        header.key, header.parent, header.namespace, header.block_tokens, header.raw_bytes,
        header.created_ms, named_ms, 0, hard_ms, kept_named_ms=named_ms, kept_hard_ms=hard_ms,
    )  # fmt: skip


def ends_in(header_ms: int) -> int:
    """Return a record's end for that of a header."""
    return FOREVER_MS if header_ms == NEVER_MS else header_ms
