"""How likely tokens were, as the OpenAI API says it for completions and chats, and vLLM for prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from os.path import commonprefix
from typing import Any

from engine_adapter.engine.detokenize import Detokenizer, TextStreams
from engine_adapter.engine.events import PromptLogprobs, TokenLogprobs

_LEAST_LOGPROB = -9999.0  # JSON knows no infinity
_MOST_TEXTS = 65_536
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """The texts of single tokens, decoded once each. One that is no whole character has none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._streams = TextStreams(tokenizer)
        self._text_of = lru_cache(maxsize=_MOST_TEXTS)(self._decode)

    def of(self, token: int) -> str:
        """Return a token's text; without one its number, as in ``token_id:17``."""
        text = self._text_of(token)
        return _numbered(token) if text is None else text

    def bytes_of(self, token: int) -> list[int] | None:
        """Return the bytes of a token's text, if it has one."""
        text = self._text_of(token)
        return None if text is None else list(text.encode())

    def offsets(self) -> TextOffsets:
        """Return what tells where the tokens of one answer begin in its text."""
        return TextOffsets(self._streams.measure())

    def _decode(self, token: int) -> str | None:
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        text = str(self._tokenizer.decode([token], **options))
        return None if _UNFINISHED in text else text


class TextOffsets:
    """Where the tokens of one answer begin in its text. Some are part of a character, or have no text."""

    def __init__(self, measure: Detokenizer) -> None:
        self._measure = measure
        self._num_characters = 0

    def add(self, token: int) -> int:
        """Return how many characters are before the next token, and behind it none that it is part of."""
        before = self._measure.held_back
        completed = self._measure.add(token)
        num_before = len(commonprefix([before, completed]))  # noqa: RUF071 - these are no paths
        offset = self._num_characters + num_before
        self._num_characters += len(completed)
        return offset


def completion_logprobs(
    tokens: Sequence[TokenLogprobs], texts: TokenTexts, offsets: TextOffsets
) -> dict[str, Any]:
    """Return a completion's ``logprobs``, for the tokens that follow those that ``offsets`` has seen."""
    return {
        "tokens": [texts.of(one.token) for one in tokens],
        "token_logprobs": [_finite(one.logprob) for one in tokens],
        "top_logprobs": [_by_text(one, texts) for one in tokens],
        "text_offset": [offsets.add(one.token) for one in tokens],
    }


def chat_logprobs(tokens: Sequence[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
    """Return a chat's ``logprobs``."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        return {"token": texts.of(token), "logprob": _finite(logprob), "bytes": texts.bytes_of(token)}

    return {
        "content": [
            {**entry(one.token, one.logprob), "top_logprobs": [entry(*pair) for pair in one.top]}
            for one in tokens
        ],
        "refusal": None,
    }


def prompt_logprobs_body(prompt: PromptLogprobs, texts: TokenTexts) -> list[dict[str, Any] | None]:
    """Return ``prompt_logprobs``: for each token of the prompt but the first, it and the likeliest by id."""
    return [None if one is None else _by_id(one, texts) for one in prompt]


def _by_id(one: TokenLogprobs, texts: TokenTexts) -> dict[str, Any]:
    ranks = {one.token: one.rank} | {token: rank for rank, (token, _) in enumerate(one.top, 1)}
    return {
        str(token): {
            "logprob": _finite(logprob),
            "rank": ranks[token],
            "decoded_token": texts.of(token),
        }
        for token, logprob in _all_of(one)
    }


def _by_text(one: TokenLogprobs, texts: TokenTexts) -> dict[str, float]:
    """Name tokens by their texts; of several with the same one, all but the first go by their numbers.

    The token in question comes before all others there.
    """
    named = {texts.of(token): token for token, _ in reversed(one.top)} | {texts.of(one.token): one.token}
    return {
        text if named[text := texts.of(token)] == token else _numbered(token): _finite(logprob)
        for token, logprob in _all_of(one)
    }


def _all_of(one: TokenLogprobs) -> Iterable[tuple[int, float]]:
    """Yield the likeliest tokens, and the one in question if it is none of them."""
    return dict([*one.top, (one.token, one.logprob)]).items()


def _numbered(token: int) -> str:
    return f"token_id:{token}"


def _finite(logprob: float) -> float:
    return max(logprob, _LEAST_LOGPROB)
