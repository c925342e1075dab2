"""Every error the project raises on purpose, in one tree.

::

    PrefixdError
    ├── ConfigError            a setting that cannot be used
    ├── PluginError            an extension that is missing or malformed
    ├── FrameError             stored bytes that are not the block they claim to be
    │   └── UnknownFormError   a block in another format version's form, or a codec's that is not here
    ├── BackendError           a tier's medium failed; only the store catches it
    │   ├── OutOfSpaceError    no room left on the medium
    │   └── TierLockedError    another process holds the tier's folder
    ├── LeaseExpiredError      a hit used after its deadline
    ├── StoreClosedError       the store was closed
    ├── EngineClosedError      the engine was closed, or its thread has ended
    ├── ModelRefusedError      a model or adapter that cannot be served, with the reason
    ├── PinBudgetError         more is to be pinned than may be
    ├── RequestError           a request that cannot be served as asked
    │   ├── PromptTooLongError
    │   └── UnknownModelError
    ├── OverloadedError        too many requests wait already
    ├── TraceError             a trace of requests that cannot be replayed
    ├── ServerFailedError      a server that was started or asked did not do as it must
    ├── ChannelError           a connection to a store in another process ended, or spoke oddly
    ├── AccessError            a token that is missing, wrong, or not enough for what was asked
    ├── AbsentError            something that was named is not there, or is somebody else's
    ├── NeedsModelError        something that only a server with a model can do
    ├── ConflictError          a request that contradicts an earlier one
    └── InvariantError         a conservation law does not hold, or a caller would break one

Each error carries its facts as attributes, and its message is one line that says what to do.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_NAME_CHARACTERS = 128


class PrefixdError(Exception):
    """Base of every error raised on purpose."""


class ConfigError(PrefixdError):
    """A setting that cannot be used. ``setting`` names it, ``reason`` says why."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(f"{setting}: {reason}")
        self.setting = setting
        self.reason = reason


class PluginError(PrefixdError):
    """An extension of ``kind`` called ``name`` that is missing or malformed."""

    def __init__(self, kind: str, name: str, reason: str) -> None:
        super().__init__(f"{kind} {name!r}: {reason}")
        self.kind = kind
        self.name = name
        self.reason = reason


class FrameError(PrefixdError):
    """Stored bytes that are not the block they claim to be; the store counts a miss."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnknownFormError(FrameError):
    """A block in another version's form, or in a codec's that is not known here: a miss, left alone."""


class BackendError(PrefixdError):
    """A tier's medium failed. Only the store catches it: it never reaches a model."""

    def __init__(self, backend: str, operation: str, reason: str) -> None:
        super().__init__(f"{backend}: {operation} failed: {reason}")
        self.backend = backend
        self.operation = operation
        self.reason = reason


class OutOfSpaceError(BackendError):
    """The medium has no room left for the bytes of this write."""


class TierLockedError(BackendError):
    """Another process holds the tier's folder."""


class LeaseExpiredError(PrefixdError):
    """A hit was used ``late_s`` seconds after its lease had run out."""

    def __init__(self, late_s: float) -> None:
        super().__init__(f"the lease ran out {late_s:.3f} s ago: look the prefix up again")
        self.late_s = late_s


class StoreClosedError(PrefixdError):
    """The store was closed and takes no more work."""

    def __init__(self) -> None:
        super().__init__("the store is closed")


class EngineClosedError(PrefixdError):
    """The engine takes no more requests; ``reason`` says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the engine takes no requests: {reason}")
        self.reason = reason


class ModelRefusedError(PrefixdError):
    """A model or an adapter that cannot be served; ``reason`` says which of its properties is in the way."""

    def __init__(self, model: str, reason: str) -> None:
        super().__init__(f"{model}: {reason}")
        self.model = model
        self.reason = reason


class PinBudgetError(PrefixdError):
    """``wanted_bytes`` are to be pinned where ``left_bytes`` are left of ``bound``; nothing was pinned."""

    def __init__(self, bound: str, wanted_bytes: int, left_bytes: int) -> None:
        super().__init__(
            f"{wanted_bytes} bytes to pin exceed the {left_bytes} that are left of {bound}: "
            "unpin something, pin less, or raise the bound"
        )
        self.bound = bound
        self.wanted_bytes = wanted_bytes
        self.left_bytes = left_bytes


class RequestError(PrefixdError):
    """A request that cannot be served as asked; ``param`` names the field at fault."""

    def __init__(self, param: str, reason: str) -> None:
        param = _shortened(param)
        super().__init__(f"{param}: {reason}")
        self.param = param
        self.reason = reason


class PromptTooLongError(RequestError):
    """A prompt of ``tokens``, or ``at_least`` as many, that exceeds ``limit``, the capacity of ``holder``."""

    def __init__(self, tokens: int, limit: int, holder: str, *, at_least: bool = False) -> None:
        counted = f"at least {tokens}" if at_least else f"{tokens}"
        super().__init__("prompt", f"{counted} tokens exceed the {limit} that the {holder} holds")
        self.tokens = tokens
        self.limit = limit
        self.holder = holder


class UnknownModelError(RequestError):
    """A request for ``model`` where only those named in ``served`` are."""

    def __init__(self, model: str, served: Sequence[str]) -> None:
        names = ", ".join(repr(name) for name in served)
        verb = "is" if len(served) == 1 else "are"
        super().__init__("model", f"{_shortened(model)!r} is not served here; {names} {verb}")
        self.model = model
        self.served = served


class OverloadedError(PrefixdError):
    """``num_waiting`` requests wait already, as many as may; a place should be free in ``retry_after_s``."""

    def __init__(self, num_waiting: int, retry_after_s: float = 1.0) -> None:
        super().__init__(f"{num_waiting} requests are waiting already: try again later")
        self.num_waiting = num_waiting
        self.retry_after_s = retry_after_s


class TraceError(PrefixdError):
    """A trace in ``file`` that cannot be replayed; ``line`` is at fault, ``None``: the whole."""

    def __init__(self, file: object, line: int | None, reason: str) -> None:
        super().__init__(f"{file}: {reason}" if line is None else f"{file}, line {line}: {reason}")
        self.line = line
        self.reason = reason


class ServerFailedError(PrefixdError):
    """A server that this process started or asked did not do as it must."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ChannelError(PrefixdError):
    """A connection to a store in another process ended, or what came over it makes no sense."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AccessError(PrefixdError):
    """A token that is missing or wrong, or whose role does not allow what was asked."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AbsentError(PrefixdError):
    """A ``kind`` of thing called ``name`` that is not there, or is somebody else's: nobody can tell which."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {_shortened(name)}")
        self.kind = kind
        self.name = name


class NeedsModelError(PrefixdError):
    """What was asked of a store alone needs a server with a model; ``what`` says what that is."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} needs a model: this is a store alone")
        self.what = what


class ConflictError(PrefixdError):
    """A request that contradicts an earlier one; ``reason`` says how."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InvariantError(PrefixdError):
    """A conservation law does not hold: a fault of the code itself."""


def one_line(error: BaseException) -> str:
    """Return what somebody else's error says, in one line that is not too long."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _shortened(name: str) -> str:
    """Return a name that a request gave, cut where it is too long to be repeated."""
    return name if len(name) <= _MOST_NAME_CHARACTERS else f"{name[: _MOST_NAME_CHARACTERS - 1]}…"
