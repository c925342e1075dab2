"""A trace of requests: when they came, how long their prompts were, and of which blocks these are made."""

from __future__ import annotations

import lzma
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import IO

from api.simulate.forms import Fields, Form, Hash, MalformedError, form_of, parse_fields, parse_line
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

    def walk(self, hashes: Sequence[Hash]) -> array[int]:
        """Return the numbers of a prompt's blocks; those not met before get the next ones."""
        numbers, number_of, parent = array("I"), self._numbers, -1
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
    if not reader.num_blocks:
        reason = "no request has a block (hash_ids)" if requests else "it holds no request"
        raise TraceError(file, None, reason)
    return Trace(_name(file), reader.block_tokens, requests, reader.num_blocks)


class _Reader:
    """Turns lines into requests; knows where it stands."""

    def __init__(self, file: Path, block_tokens: int | None) -> None:
        self.line_number = 0
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
        for self.line_number in count(1):
            line = stream.readline(_MOST_LINE_BYTES)
            if not line:
                return
            if line.isspace():
                continue
            try:
                yield self._request(line)
            except MalformedError as error:
                raise TraceError(self._file, self.line_number, str(error)) from None

    def _request(self, line: bytes) -> TracedRequest:
        if len(line) == _MOST_LINE_BYTES:
            raise MalformedError(f"the line is longer than {_MOST_LINE_BYTES} bytes")
        parsed = parse_line(line)
        self._form = self._form or form_of(parsed)
        fields = parse_fields(parsed, self._form)
        num_most = -(-fields.input_tokens // self.block_tokens)
        if len(fields.hashes) > num_most:
            raise MalformedError(
                f"hash_ids names {len(fields.hashes)} blocks, but {fields.input_tokens} tokens fill"
                f" {num_most} of {self.block_tokens} tokens"
            )
        if fields.at_ms < self._at_ms:
            raise MalformedError("timestamp is before that of the line above: sort the trace by time")
        self._at_ms = fields.at_ms
        blocks = self._tree.walk(fields.hashes)
        return TracedRequest(fields.at_ms, fields.input_tokens, blocks, self._session(fields), fields.stop)

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
