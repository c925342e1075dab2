"""From tokens to text as they come: no half characters, and nothing of a stop string."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class Detokenizer:
    """Text of one sequence, token by token.

    The texts returned add up to ``decode`` of all tokens, less a character that is still
    unfinished at the end. Only the tokens of a short window are decoded again::

        tokens   t0 t1 │ t2 t3 t4 │ t5 t6
               settled │ context  │ pending: not a whole character yet

    The context is there because a token's text can depend on whether it comes first.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        splits_bytes: Callable[[int], bool],
        is_silent: Callable[[int], bool],
    ) -> None:
        """``splits_bytes(token)``: its text depends on the tokens after it, as for ``<0xE4>``.

        ``is_silent(token)``: it has no text and none to either side of it depends on it.
        """
        self._decode = decode
        self._splits_bytes = splits_bytes
        self._is_silent = is_silent
        self._window: list[int] = []
        self._num_context = 0
        self._context_text = ""

    @property
    def held_back(self) -> str:
        """What the tokens whose text is yet to come look like so far, with half characters replaced."""
        return self._pending() if len(self._window) > self._num_context else ""

    def add(self, token: int) -> str:
        """Return the text that ``token`` completes; empty when there is none."""
        if self._is_silent(token):
            return ""
        self._window.append(token)
        if self._splits_bytes(token):
            return ""
        text = self._pending()
        if not text or text.endswith(_UNFINISHED):
            return ""
        self._settle()
        return text

    def flush(self) -> str:
        """Return the text still held back, at the end of the sequence."""
        text = self._pending().rstrip(_UNFINISHED)
        self._settle()
        return text

    def _pending(self) -> str:
        return self._decode(self._window)[len(self._context_text) :]

    def _settle(self) -> None:
        self._window = self._window[self._num_context :]
        self._num_context = len(self._window)
        self._context_text = self._decode(self._window)


class StopStrings:
    """Cuts a text before the first complete one of ``stops``, holding back what might become one."""

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def add(self, text: str) -> tuple[str, bool]:
        """Return the text that is safe to show, and whether a stop string was found."""
        self._held += text
        # The first to be complete counts, so that it does not matter in which pieces the text comes.
        found = [(at + len(stop), at) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            return self._cut(min(found)[1]), True
        return self._cut(len(self._held) - self._num_suspect()), False

    def flush(self) -> str:
        """Return what was held back, at the end of the text."""
        return self._cut(len(self._held))

    def _num_suspect(self) -> int:
        """Return the length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

    def _cut(self, end: int) -> str:
        text, self._held = self._held[:end], self._held[end:]
        return text


class TextStream:
    """The text of one sequence as its caller may see it."""

    def __init__(self, detokenizer: Detokenizer, stops: Iterable[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops)
        self._stopped = False

    def add(self, token: int) -> tuple[str, bool]:
        """Return the text to show now, and whether a stop string ends the sequence."""
        text, self._stopped = self._stops.add(self._detokenizer.add(token))
        return text, self._stopped

    def flush(self) -> str:
        """Return the text that was held back; nothing after a stop string."""
        if self._stopped:
            return ""
        text, stopped = self._stops.add(self._detokenizer.flush())
        return text if stopped else text + self._stops.flush()


class TextStreams:
    """Makes text streams for one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._byte_tokens = frozenset(
            number for token, number in tokenizer.get_vocab().items() if _BYTE_TOKEN.fullmatch(token)
        )
        self._special_tokens = frozenset(
            number for number, token in tokenizer.added_tokens_decoder.items() if token.special
        )

    def start(self, stops: Iterable[str]) -> TextStream:
        """Return the stream of a new sequence."""
        is_byte, is_special = self._byte_tokens.__contains__, self._special_tokens.__contains__
        return TextStream(Detokenizer(self._decode, is_byte, is_special), stops)

    def measure(self) -> Detokenizer:
        """Return what tells how long the text of a new sequence is: a character counts once it is whole.

        A stream waits longer with one that bytes make up, for another byte behind them may undo it.
        """
        return Detokenizer(self._decode, lambda _: False, self._special_tokens.__contains__)

    def _decode(self, tokens: Sequence[int]) -> str:
        return str(
            self._tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )
