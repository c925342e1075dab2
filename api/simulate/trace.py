"""A trace of requests: when they came, how long their prompts were, and of which blocks these are made."""

from __future__ import annotations

import lzma
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import IO, Any

from api.simulate.forms import (
    Fields,
    Form,
    Hash,
    MalformedError,
    NotJsonError,
    form_of,
    parse_fields,
    parse_line,
)
from kvstore.errors import ConfigError, TraceError

_XZ_MAGIC = b"\xfd7zXZ\x00"
_MOST_LINE_BYTES = 1 << 26
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request. ``blocks`` are the numbers of its prompt's blocks, in order.

    ``answer`` are those of the whole blocks that its answer fills behind them.
    """

    at_ms: float
    input_tokens: int
    blocks: array[int]
    session: Hash | None = None
    stop: str | None = None
    answer: Sequence[int] = ()
    ttl_s: float | None = None
    end_session: bool = False
    expected_pause_s: float | None = None


@dataclass(frozen=True)
class Trace:
    """Requests in the order in which they came; a block's number stands for it and all before it."""

    name: str
    block_tokens: int
    requests: Sequence[TracedRequest]
    num_blocks: int
    """How many different blocks there are."""
    notes: tuple[str, ...] = ()
    """What people should know of how it was read."""

    @cached_property
    def keys(self) -> list[bytes]:
        """The key of each block, by number."""
        return [number.to_bytes(_KEY_BYTES, "big") for number in range(self.num_blocks)]

    @cached_property
    def num_accesses(self) -> int:
        """The blocks of all prompts together."""
        return sum(len(request.blocks) for request in self.requests)

    @cached_property
    def num_tokens(self) -> int:
        """The tokens of all prompts together."""
        return sum(request.input_tokens for request in self.requests)


class PrefixTree:
    """Numbers blocks by what they hold and all that stands before them, from 0."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, Hash], int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def walk(self, hashes: Sequence[Hash], parent: int = -1) -> array[int]:
        """Return the numbers of blocks behind block ``parent`` (-1: none); new ones get the next numbers."""
        numbers, number_of = array("I"), self._numbers
        for block_hash in hashes:
            parent = number_of.setdefault((parent, block_hash), len(number_of))
            numbers.append(parent)
        return numbers


def read_trace(file: Path, block_tokens: int | None = None) -> Trace:
    """Read a trace, plain or compressed by xz, in one of the forms of ``api.simulate.forms``.

    ``block_tokens`` is the size of its blocks (``None``: as usual in its form). Raises ``ConfigError``
    when the file cannot be read, ``TraceError`` for what cannot be replayed.
    """
    reader = _Reader(file, block_tokens)
    try:
        with _open(file) as stream:
            requests = list(reader.requests(stream))
    except (lzma.LZMAError, EOFError) as error:
        raise TraceError(file, reader.line_number, f"the compressed file is damaged: {error}") from error
    except OSError as error:
        raise ConfigError("trace", f"{file} cannot be read: {error.strerror}") from error
    if not any(request.blocks for request in requests):
        reason = "no request has a block (hash_ids)" if requests else "it holds no request"
        raise TraceError(file, None, reason)
    requests.sort(key=lambda request: request.at_ms)
    return Trace(_name(file), reader.block_tokens, requests, reader.num_blocks, tuple(reader.notes))


class _Reader:
    """Turns lines into requests; knows where it stands."""

    def __init__(self, file: Path, block_tokens: int | None) -> None:
        self.line_number = 0
        self.notes: list[str] = []
        self._file = file
        self._block_tokens = block_tokens
        self._form: Form | None = None
        self._tree = PrefixTree()
        self._at_ms = 0.0
        self._sessions: dict[Hash, Hash] = {}

    @property
    def block_tokens(self) -> int:
        """How many tokens a block has."""
        return self._block_tokens or (self._form.block_tokens if self._form else 0)

    @property
    def num_blocks(self) -> int:
        """How many different blocks were met."""
        return len(self._tree)

    def requests(self, stream: IO[bytes]) -> Iterator[TracedRequest]:
        """Yield the request of every line that is not blank. Raises ``TraceError``."""
        for line in self._lines(stream):
            try:
                parsed = parse_line(line)
                if self._form is None:
                    self._form = self._begin(parsed)
                    if self._form.is_recorded:
                        continue
                yield self._request(parsed, self._form)
            except MalformedError as error:
                if isinstance(error, NotJsonError) and self._is_cut_off(line):
                    self.notes.append(f"line {self.line_number}, the last one, is cut off and was left out")
                    return
                raise TraceError(self._file, self.line_number, str(error)) from None

    def _lines(self, stream: IO[bytes]) -> Iterator[bytes]:
        for self.line_number in count(1):
            line = stream.readline(_MOST_LINE_BYTES)
            if not line:
                return
            if len(line) == _MOST_LINE_BYTES:
                reason = f"the line is longer than {_MOST_LINE_BYTES} bytes"
                raise TraceError(self._file, self.line_number, reason)
            if not line.isspace():
                yield line

    def _begin(self, parsed: Mapping[str, Any]) -> Form:
        """Return the form, by the first line."""
        form = form_of(parsed)
        if form.is_recorded and self._block_tokens not in {None, form.block_tokens}:
            reason = f"its blocks are of {form.block_tokens} tokens, whatever --block-tokens says"
            raise MalformedError(reason)
        return form

    def _is_cut_off(self, line: bytes) -> bool:
        """Say whether a server was ended while it wrote this line of its recording."""
        return self._form is not None and self._form.is_recorded and not line.endswith(b"\n")

    def _request(self, parsed: Mapping[str, Any], form: Form) -> TracedRequest:
        fields = parse_fields(parsed, form)
        self._require_blocks_fit("hash_ids", len(fields.hashes), fields.input_tokens)
        num_all = len(fields.hashes) + len(fields.answer)
        self._require_blocks_fit("answer_ids", num_all, fields.input_tokens + fields.output_tokens)
        if fields.at_ms < self._at_ms and not form.is_recorded:
            raise MalformedError("timestamp is before that of the line above: sort the trace by time")
        self._at_ms = fields.at_ms
        blocks = self._tree.walk(fields.hashes)
        return TracedRequest(
            fields.at_ms,
            fields.input_tokens,
            blocks,
            self._session(fields),
            fields.stop,
            self._tree.walk(fields.answer, blocks[-1] if blocks else -1) if fields.answer else (),
            fields.ttl_s,
            fields.end_session,
            fields.expected_pause_s,
        )

    def _require_blocks_fit(self, name: str, num: int, num_tokens: int) -> None:
        num_most = -(-num_tokens // self.block_tokens)
        if num > num_most:
            raise MalformedError(
                f"{name} names {num} blocks, but {num_tokens} tokens fill"
                f" {num_most} of {self.block_tokens} tokens"
            )

    def _session(self, fields: Fields) -> Hash | None:
        """Return the session that is named, or the first chat of those that follow each other."""
        if fields.chat is None:
            return fields.session
        session = fields.chat if fields.parent_chat is None else fields.parent_chat
        session = self._sessions.get(session, session)
        self._sessions[fields.chat] = session
        return session


def _open(file: Path) -> IO[bytes]:
    stream = file.open("rb")
    is_compressed = stream.read(len(_XZ_MAGIC)) == _XZ_MAGIC
    stream.close()
    return lzma.open(file) if is_compressed else file.open("rb")


def _name(file: Path) -> str:
    return file.name.removesuffix(".xz").removesuffix(".jsonl") or file.name
