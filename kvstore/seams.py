"""The protocols behind which extensions of the store stand: backends, codecs, eviction, admission."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol, runtime_checkable

from kvstore.arena import Slot
from kvstore.frame import Header
from kvstore.hints import Hint
from kvstore.slab import Slab


@dataclass(frozen=True, slots=True)
class BackendStats:
    """What a backend says of its medium: bytes it occupies there, and plain facts for ``doctor``."""

    occupied_bytes: int
    facts: dict[str, str]


class Backend(Protocol):
    """Moves frames to and from one medium. It decides nothing and verifies nothing.

    Every method may be called from any thread, several at once. A miss is a value; a fault is a
    ``BackendError`` (or any other exception, which the store treats alike).
    """

    def get_into(self, key: bytes, header: memoryview, payload: memoryview) -> int | None:
        """Read the frame of ``key`` into ``header`` (192 bytes) and the front of ``payload``; may block.

        Returns the payload's length; ``None`` when the key is not there or ``payload`` is too short
        for what is there. On ``None`` or an error both buffers are undefined.
        """
        ...

    def put(self, key: bytes, header: memoryview, payload: memoryview) -> None:
        """Store one frame; may block. Visible to ``get_into`` in one step, after all its bytes.

        Replaces what was there. The buffers stay the caller's and are not kept. Raises
        ``OutOfSpaceError`` when the medium is full; after any error the key is not visible.
        """
        ...

    def delete(self, key: bytes) -> None:
        """Remove the frame of ``key``; not an error when it is not there."""
        ...

    def footprint(self, payload_bytes: int) -> int:
        """Return the bytes a frame with that payload occupies on the medium, for budgets."""
        ...

    def recover(self) -> Iterable[Header]:
        """Yield what is there from before, least recently used first; must be quick to begin.

        Bytes are not read: the store verifies a block when it is first loaded.
        """
        ...

    def put_manifest(self, namespace: bytes, manifest: str) -> None:
        """Keep a namespace's readable manifest beside its blocks, if the medium outlives us."""
        ...

    def manifests(self) -> Iterable[str]:
        """Yield the manifests that are kept there, ours and others'; may block."""
        ...

    def stats(self) -> BackendStats:
        """Return what the medium holds; quick."""
        ...

    def close(self) -> None:
        """Finish what is under way and let go of the medium; idempotent."""
        ...


@runtime_checkable
class Discovering(Protocol):
    """A backend that may find more blocks after ``recover``, by a scan in the background."""

    def discover(self, found: Callable[[Header], None], stop: Callable[[], bool]) -> None:
        """Call ``found`` for each block that ``recover`` did not name; blocks until the scan ends."""
        ...


class Want(NamedTuple):
    """A frame to read, and where to: see ``Backend.get_into``."""

    key: bytes
    header: memoryview
    payload: memoryview


@runtime_checkable
class Streaming(Protocol):
    """A backend that reads several frames in one exchange, so that its latency is paid once."""

    def get_each(self, wants: Sequence[Want]) -> Iterator[int | None]:
        """Yield what ``get_into`` would return for each want, in their order, as soon as it is there.

        May block and may raise at any step; those not yet yielded are then undefined.
        """
        ...


IsHeld = Callable[[bytes], bool]
"""Says which blocks may not go."""

HeaderChange = Callable[[Header], Header]
"""Makes another header of a frame's: other times, everything else as it is."""


@runtime_checkable
class Amending(Protocol):
    """A backend that rewrites headers in place: a block that is used again outlives a restart by as much.

    Without it a header says for good what was true when its block was written.
    """

    def amend(self, key: bytes, change: HeaderChange) -> bool:
        """Put what ``change`` makes of it in place of the header of ``key``, in one step; may block.

        A reader sees the one or the other, and the same payload. A medium that ends blocks by itself lets all
        of the frame go when the new header says. ``False``: the key is not there, or somebody has put or
        deleted it meanwhile, and that stands. ``change`` may be called again for another header.
        """
        ...


@runtime_checkable
class SharedMedium(Protocol):
    """A backend whose medium other processes write to as well, so that it has to be asked.

    It lets each block go by itself at the end that its header names; ``recover`` yields nothing.
    """

    def resident(self, keys: Sequence[bytes]) -> Sequence[Header | None]:
        """Return the header of each block that is there now, in one exchange; may block."""
        ...


class Loan(NamedTuple):
    """A block's bytes as they lie in our own memory, and the function that gives them back, once.

    They stay the block's until then, whatever becomes of it. They must not be written to (a
    read-only view would cost consumers such as ``torch.frombuffer`` a copy).
    """

    data: memoryview
    give_back: Callable[[], None]
    slot: Slot


@runtime_checkable
class Lending(Protocol):
    """A backend in our own memory: it takes over filled slots and lends them without a copy."""

    def adopt(self, key: bytes, slot: Slot) -> Loan | None:
        """Own ``slot`` as the block of ``key`` and lend it back; ``None``: closed, it stays the caller's."""
        ...

    def lend(self, key: bytes) -> Loan | None:
        """Lend the block's bytes; ``None``: not there."""
        ...

    def where(self, key: bytes) -> Slot | None:
        """Return the slot that holds a block, to be read while the block is held; ``None``: not there."""
        ...

    def slabs_like(self, slab: Slab) -> list[list[bytes]]:
        """Return the blocks of each slab of the same owner and slots, those with the fewest first.

        A slab in which there is anything but blocks is left out.
        """
        ...

    def surrender(self, key: bytes) -> Slot | None:
        """Remove the block and hand its slot to the caller; ``None``: not there, or lent out."""
        ...


class EvictionPolicy(Protocol):
    """An ordering of the blocks of one tier: who goes first. Pure: no clock, I/O or logging.

    Not thread-safe; the tier calls it under its lock. ``now_s`` never decreases.
    """

    def insert(self, key: bytes, parent: bytes, now_s: float) -> None:
        """Add ``key``, which is not present; ``parent`` (empty: none) may be absent."""
        ...

    def touch(self, key: bytes, now_s: float) -> None:
        """Note a use of ``key``; nothing happens when it is not present."""
        ...

    def remove(self, key: bytes) -> None:
        """Forget ``key``; nothing happens when it is not present."""
        ...

    def victims(self, is_held: IsHeld) -> Iterator[bytes]:
        """Yield keys in the order they should go, a resident child always before its parent.

        Each key yielded counts as gone for those after it, but stays until ``remove``. Keys for
        which ``is_held`` holds are passed over, and so are their resident ancestors. The caller
        changes nothing before it has finished with the iterator.
        """
        ...

    def __len__(self) -> int: ...

    def __contains__(self, key: bytes) -> bool: ...

    def check(self) -> None:
        """Raise ``InvariantError`` when the bookkeeping contradicts itself."""
        ...


@runtime_checkable
class Hearing(Protocol):
    """An eviction policy that takes hints. They may be wrong, and must not cost more than none would."""

    def hear(self, keys: Sequence[bytes], hint: Hint, now_s: float) -> None:
        """Take what is said of a prompt whose answer has ended; ``keys`` are all its blocks, in order.

        Some may be absent, and others may have been used by somebody else meanwhile.
        """
        ...


class Codec(Protocol):
    """A lossless form of blocks at rest. ``number`` (1 to 255) names it in every frame header.

    Methods may be called from any thread, several at once, and should let go of the GIL.
    """

    number: int

    def encode(self, raw: memoryview, out: memoryview) -> int | None:
        """Write the form of ``raw`` to the front of ``out`` (as long as ``raw``) and return its length.

        ``None``: it would not be shorter, so the block is stored as it is.
        """
        ...

    def decode(self, stored: memoryview, out: memoryview) -> None:
        """Write the block to ``out`` (its raw length). Raises ``FrameError`` for anything malformed."""
        ...


@dataclass(frozen=True, slots=True)
class Transfer:
    """One block read from a tier, in seconds of the monotonic clock and bytes on the medium and raw.

    ``arrived_s`` is when it was verified and decoded, which took ``decode_s`` of the time.
    """

    tier: str
    asked_s: float
    arrived_s: float
    stored_bytes: int
    raw_bytes: int
    decode_s: float


OnTransfer = Callable[[Transfer], None]
"""Hears of each block read from a medium; called on transfer threads, must be quick."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A block offered to ``tier``: its size there, how much of it is filled, and where it stands.

    ``first_token`` is the position of its first token in the prompt; ``None``: unknown.
    """

    tier: str
    num_tokens: int
    block_tokens: int
    footprint_bytes: int
    budget_bytes: int
    first_token: int | None = None


class Verdict(Enum):
    """What a tier says to a block it is offered."""

    ADMITTED = "admitted"
    NOT_WHOLE = "not whole"
    TOO_LARGE = "too large"
    NEVER_FASTER = "never faster"
    """It could not be loaded from there faster than it is computed."""


Admission = Callable[[Offer], Verdict]
"""Says whether a tier takes a block; quick. What it says of equal offers may change with time: the
store asks again about once a second."""
