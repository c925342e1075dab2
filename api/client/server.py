"""A running server, asked over HTTP; faults and refusals are one line that says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from kvstore.errors import ConfigError, ServerFailedError

_LONGEST_SILENCE_S = 60.0
_PAGE = 1000
_USER_AND_PASSWORD = re.compile(r"(?<=//)[^/]*@")

Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Server:
    """A running server: its URL (with or without ``/v1``) and its token, if it asks for one.

    All methods raise ``ServerFailedError`` when it does not answer or refuses, ``ConfigError`` for what is no
    URL.
    """

    url: str
    token: str | None = None

    def ask(
        self,
        method: str,
        path: str,
        body: Fields | None = None,
        *,
        wants: str,
        query: Fields | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return the object that it answers with, which has the field ``wants``."""
        with self._errors():
            response = self._client().request(method, path, json=body, params=query, headers=headers)
        return self._object_in(response, wants)

    def listed(self, path: str, limit: int, query: Fields | None = None) -> dict[str, Any]:
        """Return the first ``limit`` entries of a list (0: all), page after page, in the form of one page."""
        entries: list[Any] = []
        cursor = None
        while True:
            left = min(_PAGE, limit - len(entries)) if limit else _PAGE
            asked = {**(query or {}), "limit": left} | ({"cursor": cursor} if cursor else {})
            page = self.ask("GET", path, wants="data", query=asked)
            entries += page["data"]
            cursor = page["next_cursor"]
            if cursor is None or (limit and len(entries) >= limit):
                return {**page, "data": entries}

    @contextmanager
    def download(self, path: str, body: Fields) -> Iterator[httpx.Response]:
        """Post and yield the answer, whose bytes are read piece by piece inside."""
        with self._errors(), self._client().stream("POST", path, json=body) as response:
            if response.is_error:
                response.read()
                self._object_in(response, "")
            yield response

    def upload(
        self, path: str, pieces: Iterable[bytes], *, wants: str, headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """Post bytes and return the object that it answers with."""
        with self._errors():
            response = self._client().post(path, content=pieces, headers=headers)
        return self._object_in(response, wants)

    def _client(self) -> httpx.Client:
        base = self.url.rstrip("/").removesuffix("/v1")
        headers = {b"Authorization": f"Bearer {self.token}".encode()} if self.token else {}
        return httpx.Client(base_url=base, headers=headers, timeout=_LONGEST_SILENCE_S, trust_env=False)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            reason = f"{self._shown_url!r} is no URL such as http://127.0.0.1:8000: {error}"
            raise ConfigError("url", reason) from None
        except httpx.ConnectError:
            advice = "start one with 'prefixd serve', or name it with --url"
            raise ServerFailedError(f"no server answers at {self._shown_url}: {advice}") from None
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise ServerFailedError(f"the server at {self._shown_url} did not answer ({kind})") from None

    def _object_in(self, response: httpx.Response, wants: str) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            raise self._is_no_prefixd() from None
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        if response.status_code == httpx.codes.UNAUTHORIZED:
            wish = "does not know the token that it was sent" if self.token else "asks for its token"
            advice = "set PREFIXD_TOKEN, or give --token-file"
            raise ServerFailedError(f"the server at {self._shown_url} {wish}: {advice}")
        if response.is_error and message:
            refusal = " ".join(str(message).split())
            raise ServerFailedError(f"the server at {self._shown_url} refuses: {refusal}")
        if response.is_error or not isinstance(answer, dict) or wants not in answer:
            raise self._is_no_prefixd()
        return answer

    @property
    def _shown_url(self) -> str:
        return _USER_AND_PASSWORD.sub("", self.url)

    def _is_no_prefixd(self) -> ServerFailedError:
        return ServerFailedError(f"what answers at {self._shown_url} is no prefixd server of this version")
