"""What a caller asks of the engine."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from kvstore.errors import RequestError
from kvstore.retention import MAX_LIFETIME_S

if TYPE_CHECKING:  # it brings torch, which the settings, whose bounds are here, must not wait for
    from engine_adapter.engine.constraints import Constraint

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_LOGPROBS = 20
MAX_ANSWERS = 128
MAX_PRIORITY = 2**31 - 1
MAX_NAME_CHARACTERS = 1024


class CacheUse(Enum):
    """What one request may do with the cache: look prefixes up, leave its own behind, both, neither."""

    OFF = "off"
    READ = "read"
    WRITE = "write"
    ON = "on"

    @property
    def reads(self) -> bool:
        """Whether prefixes are looked up."""
        return self in {CacheUse.READ, CacheUse.ON}

    @property
    def writes(self) -> bool:
        """Whether filled blocks are published and stored."""
        return self in {CacheUse.WRITE, CacheUse.ON}

    @property
    def without_reading(self) -> CacheUse:
        """The same, with no prefix looked up."""
        return CacheUse.WRITE if self.writes else CacheUse.OFF


class Mode(Enum):
    """How far the tiers below the device are trusted. Blocks on the device are shared in all but ``OFF``."""

    OFF = "off"
    """No cache at all."""
    OBSERVE = "observe"
    """Blocks are stored, and what loading them would have saved is predicted; none is loaded."""
    VERIFY = "verify"
    """A share of the hits is computed all the same and compared; the others are served."""
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen and when to end.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 do not restrict. ``seed`` makes the
    choice repeatable. ``stop`` strings end the text before them. ``max_tokens`` ``None`` goes on
    to the end of the context. ``n`` answers are given to the prompt, which is computed once; with a
    ``seed``, each has its own: ``seed`` plus its index.

    ``logprobs`` asks how likely each chosen token was, and which were the likeliest, so many of them;
    ``prompt_logprobs`` asks the same of the prompt's tokens: then all of it is computed and nothing looked
    up, though what it leaves behind is kept. Raises ``RequestError`` for values out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        _require(0 <= self.temperature <= 100, "temperature", "must be a number from 0 to 100")
        _require(0 < self.top_p <= 1, "top_p", "must be above 0 and at most 1")
        _require(self.top_k >= 0, "top_k", "must be 0 (no limit) or more")
        _require(self.seed is None or -(2**63) <= self.seed < 2**63, "seed", "must fit in 64 bits")
        _require(self.max_tokens is None or self.max_tokens >= 1, "max_tokens", "must be 1 or more")
        _require(1 <= self.n <= MAX_ANSWERS, "n", f"must be from 1 to {MAX_ANSWERS}")
        _require(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"at most {MAX_STOP_STRINGS} strings")
        for text in self.stop:
            fits = 1 <= len(text) <= MAX_STOP_CHARACTERS
            _require(fits, "stop", f"each string has 1 to {MAX_STOP_CHARACTERS} characters")
        for name in ("logprobs", "prompt_logprobs"):
            num_top = getattr(self, name)
            fits = num_top is None or 0 <= num_top <= MAX_LOGPROBS
            _require(fits, name, f"must be from 0 to {MAX_LOGPROBS}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt (token ids) to be continued. Raises ``RequestError`` for values out of range.

    ``mode`` is the engine's own unless the request names one. ``lora`` names the adapter to answer
    with, ``None``: the model alone.
    ``constraint`` is what the answers must look like, compiled by the engine's own ``constraints``; an answer
    that is cut short, at its length or by a stop string, may be the beginning of what fits.
    A request with a smaller ``priority`` goes first, however long others have waited.
    ``tenant`` is whose it is, of those who are known by a token, and ``salt`` a secret: requests of different
    tenants, or with different salts, never share a block. ``ttl_s`` ends the blocks this request leaves
    behind. ``session``, ``end_session`` and ``expected_pause_s`` tell policies when the prefix will be wanted
    again.
    """

    prompt_ids: Sequence[int]
    sampling: Sampling = field(default_factory=Sampling)
    cache: CacheUse = CacheUse.ON
    mode: Mode | None = None
    ttl_s: float | None = None
    salt: str = ""
    tenant: str = ""
    session: str | None = None
    end_session: bool = False
    expected_pause_s: float | None = None
    lora: str | None = None
    priority: int = 0
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        _require(len(self.prompt_ids) > 0, "prompt", "must not be empty")
        _require(
            _is_duration(self.ttl_s) and self.ttl_s != 0,
            "ttl_s",
            f"must be above 0 and at most {MAX_LIFETIME_S} seconds",
        )
        _require(
            _is_duration(self.expected_pause_s),
            "expected_pause_s",
            f"must be from 0 to {MAX_LIFETIME_S} seconds",
        )
        _require(len(self.salt) <= MAX_NAME_CHARACTERS, "salt", f"at most {MAX_NAME_CHARACTERS} characters")
        has_end = self.constraint is None or not self.sampling.ignore_eos
        _require(has_end, "ignore_eos", "a constrained answer ends where it must; leave out one of the two")
        _require(-MAX_PRIORITY - 1 <= self.priority <= MAX_PRIORITY, "priority", "must fit in 32 bits")
        for name, value in (("session", self.session), ("lora", self.lora)):
            fits = value is None or 1 <= len(value) <= MAX_NAME_CHARACTERS
            _require(fits, name, f"has 1 to {MAX_NAME_CHARACTERS} characters")

    def require_vocabulary(self, vocab_size: int) -> None:
        """Raise ``RequestError`` when a prompt token is not below ``vocab_size``."""
        known = min(self.prompt_ids) >= 0 and max(self.prompt_ids) < vocab_size
        _require(known, "prompt", f"token ids must be from 0 to {vocab_size - 1}")

    def require_adapter(self, adapters: Collection[str]) -> None:
        """Raise ``RequestError`` when it names an adapter that is none of ``adapters``."""
        names = ", ".join(sorted(adapters)) or "there are none"
        is_known = self.lora is None or self.lora in adapters
        _require(is_known, "lora", f"{self.lora!r} is no adapter that is served; those are: {names}")


def _is_duration(value_s: float | None) -> bool:
    return value_s is None or 0 <= value_s <= MAX_LIFETIME_S


def _require(holds: bool, param: str, reason: str) -> None:
    if not holds:
        raise RequestError(param, reason)
