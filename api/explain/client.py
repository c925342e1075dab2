"""Asks a running server what it decided, or would decide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from kvstore.errors import ConfigError, ServerFailedError

_LONGEST_SILENCE_S = 60.0
_USER_AND_PASSWORD = re.compile(r"(?<=//)[^/]*@")


@dataclass(frozen=True)
class Server:
    """A running server: its URL (with or without ``/v1``) and its token, if it asks for one."""

    url: str
    token: str | None = None

    def last_account(self) -> dict[str, Any] | None:
        """Return the last request that ended; ``None``: there was none. Raises ``ServerFailedError``."""
        listed = self._answer("GET", "/admin/plans?limit=1").get("data")
        if not isinstance(listed, list):
            raise self._is_no_prefixd()
        return listed[0] if listed else None

    def explanation(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return what would be done with a prompt. Raises ``ServerFailedError``."""
        explained = self._answer("POST", "/admin/explain", body)
        if "blocks" not in explained:
            raise self._is_no_prefixd()
        return explained

    def _answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        url = self.url.rstrip("/").removesuffix("/v1") + path
        headers = {b"Authorization": f"Bearer {self.token}".encode()} if self.token else {}
        try:
            response = httpx.request(
                method, url, json=body, headers=headers, timeout=_LONGEST_SILENCE_S, trust_env=False
            )
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            reason = f"{self._shown_url!r} is no URL such as http://127.0.0.1:8000: {error}"
            raise ConfigError("url", reason) from None
        except httpx.ConnectError:
            advice = "start one with 'prefixd serve', or name it with --url"
            raise ServerFailedError(f"no server answers at {self._shown_url}: {advice}") from None
        except httpx.HTTPError as error:
            kind = type(error).__name__
            raise ServerFailedError(f"the server at {self._shown_url} did not answer ({kind})") from None
        return self._object_in(response)

    def _object_in(self, response: httpx.Response) -> dict[str, Any]:
        try:
            answer = response.json()
        except ValueError:
            raise self._is_no_prefixd() from None
        error = answer.get("error") if isinstance(answer, dict) else None
        message = error.get("message") if isinstance(error, dict) else None
        if response.status_code == httpx.codes.UNAUTHORIZED:
            raise ServerFailedError(
                f"the server at {self._shown_url} asks for its token: set PREFIXD_API_TOKEN"
            )
        if response.is_error and message:
            raise ServerFailedError(
                f"the server at {self._shown_url} refuses: {' '.join(str(message).split())}"
            )
        if response.is_error or not isinstance(answer, dict):
            raise self._is_no_prefixd()
        return answer

    @property
    def _shown_url(self) -> str:
        return _USER_AND_PASSWORD.sub("", self.url)

    def _is_no_prefixd(self) -> ServerFailedError:
        return ServerFailedError(f"what answers at {self._shown_url} is no prefixd server of this version")
