"""Answers held to a JSON schema, a regular expression or a list of choices; llguidance knows what fits."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kvstore.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_CONSTRAINT_CHARACTERS = 64 * 1024
ANY_OBJECT: Mapping[str, Any] = {"type": "object"}
# JSON allows any amount of it, and a small model that begins with spaces might never end.
_WHITESPACE = r"[ \n\r\t]{1,40}"
# Of one or two kB each, for all answers to a request together.
_MAX_LEXER_STATES = 20_000
# Some microseconds each, which the library's own limits do not count.
_MAX_REMAINDERS = 100_000


class Matcher:
    """How far one answer has come in its constraint. Used by one thread at a time."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def is_complete(self) -> bool:
        """Whether nothing can follow but the end of the answer."""
        return self._matcher.is_stopped()

    def forbidden(self, vocab_size: int) -> torch.Tensor:
        """Return which tokens may not come next: bools ``[vocab_size]`` on the CPU."""
        a_byte_each = bytearray(self._matcher.compute_logit_bias())
        return torch.frombuffer(a_byte_each, dtype=torch.uint8)[:vocab_size] == 0

    def accept(self, token: int) -> None:
        """Go on behind ``token``. Raises ``RequestError`` when what fits became too complex to tell."""
        if not self._matcher.consume_token(token):
            raise _refusal(self._matcher.get_error())


@dataclass(frozen=True, slots=True, eq=False)
class Constraint:
    """What answers must look like, compiled for the tokens of one engine. Thread-safe."""

    compiled_by: Constraints
    beginning: LLMatcher

    def begin(self) -> Matcher:
        """Return the matcher of one more answer."""
        return Matcher(self.beginning.deep_copy())


class Constraints:
    """Compiles what answers must look like, for the tokens of one model. Thread-safe.

    That blocks: mostly some milliseconds, some seconds at worst, and about one more the first time.
    Raises ``RequestError`` for what is too large, malformed or not supported, and where the extra is missing.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = sorted(token for token in eos_token_ids if token < len(tokenizer))
        self._tokens: LLTokenizer | None = None
        self._lock = Lock()

    def json_schema(self, schema: Mapping[str, Any] = ANY_OBJECT) -> Constraint:
        """Hold answers to a JSON schema, by default to any JSON object."""
        try:
            text = json.dumps({"x-guidance": {"whitespace_pattern": _WHITESPACE}, **schema}, allow_nan=False)
            num_remainders = _num_remainders(schema)
        except (TypeError, ValueError, RecursionError) as error:
            raise _refusal(str(error)) from None
        if num_remainders > _MAX_REMAINDERS:
            raise _refusal(
                f"multipleOf: all of them multiplied exceed {_MAX_REMAINDERS}, decimal points left out"
            )
        return self._compile("json", text)

    def regex(self, pattern: str) -> Constraint:
        """Hold answers to a regular expression, in Rust's syntax; it matches all of an answer."""
        return self._compile("regex", pattern)

    def choice(self, choices: Sequence[str]) -> Constraint:
        """Hold answers to one of ``choices``."""
        if not choices or not all(choices):
            raise _refusal("give at least one choice, and none that is empty")
        return self._compile("choice", json.dumps(list(choices)))

    def _compile(self, form: Literal["json", "regex", "choice"], text: str) -> Constraint:
        if len(text) > MAX_CONSTRAINT_CHARACTERS:
            raise _refusal(f"has {len(text)} characters; {MAX_CONSTRAINT_CHARACTERS} are the most")
        try:
            from llguidance import LLMatcher, LLParserLimits, grammar_from  # noqa: PLC0415 - an extra
        except ModuleNotFoundError:
            raise _refusal("needs llguidance: pip install 'prefixd[constrained]'") from None
        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        try:
            matcher = LLMatcher(self._tokens_of_model(), grammar_from(form, text), log_level=0, limits=limits)
        except ValueError as error:
            raise _refusal(str(error)) from None
        _try_a_token(matcher.deep_copy())
        return Constraint(self, matcher)

    def _tokens_of_model(self) -> LLTokenizer:
        from llguidance.hf import from_tokenizer  # noqa: PLC0415 - an extra

        with self._lock:
            if self._tokens is None:
                if not isinstance(self._tokenizer, PreTrainedTokenizerFast) or not self._eos_token_ids:
                    raise _refusal("this model has no fast tokenizer, or no token that ends an answer")
                num_tokens = max(self._vocab_size, len(self._tokenizer))
                self._tokens = from_tokenizer(self._tokenizer, num_tokens, self._eos_token_ids)
            return self._tokens


def held_to(matchers: Sequence[Matcher | None], logits: torch.Tensor) -> torch.Tensor:
    """Return ``logits`` ``[len(matchers), vocab]``, minus infinity where a row's matcher forbids the token.

    The same tensor where there are no matchers, and a copy where there are some.
    """
    held = [(row, matcher) for row, matcher in enumerate(matchers) if matcher is not None]
    if not held:
        return logits
    forbidden = torch.stack([matcher.forbidden(logits.shape[-1]) for _, matcher in held]).to(logits.device)
    masked = logits.clone()
    for (row, _), tokens in zip(held, forbidden, strict=True):
        masked[row].masked_fill_(tokens, -math.inf)
    return masked


def _try_a_token(matcher: LLMatcher) -> None:
    """Raise ``RequestError`` for what fails at the first token already, or behind it."""
    fitting = matcher.compute_logit_bias()
    if not matcher.get_error() and matcher.consume_token(len(fitting) - len(fitting.lstrip(b"\0"))):
        matcher.compute_logit_bias()
    if fault := matcher.get_error():
        raise _refusal(fault)


def _num_remainders(part: Any) -> int:
    """Return how many remainders have to be told apart for all ``multipleOf`` in a schema together."""
    if isinstance(part, list):
        return math.prod(map(_num_remainders, part))
    if not isinstance(part, Mapping):
        return 1
    step: Any = part.get("multipleOf")
    digits = f"{Decimal(str(step)):f}" if type(step) in {int, float} and step > 0 else "1"
    return int(digits.replace(".", "")) * math.prod(map(_num_remainders, part.values()))


def _refusal(fault: str) -> RequestError:
    """Return the error for what the library says, less what it repeats of the constraint."""
    found = re.search(r"^error: (.*)", fault, re.MULTILINE)
    reason = found[1] if found else fault.rpartition("(in regex): ")[2].partition("<non-verbose/>")[0]
    return RequestError("constraint", " ".join(reason.split())[:300])
