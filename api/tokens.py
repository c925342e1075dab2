"""Who is let in: the server's own token, and those of a file, each with a role and perhaps a tenant."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from api.setting_types import Name, Token
from api.settings import Settings
from api.toml_file import Entry, in_one_line, read_toml_file, warn_of_readers
from kvstore.errors import AccessError, ConfigError
from kvstore.remote.tenancy import Authenticate, Role, Tenant, open_to_all

_MOST_TOKENS = 10_000
_MOST_TENANT_CHARACTERS = 256
_DIGEST = r"^[0-9a-f]{64}$"
_OWN_NAME = "api_token"


class _Token(Entry):
    token: Token | None = None
    token_sha256: Annotated[str, Field(pattern=_DIGEST)] | None = None
    role: Literal["read", "data", "admin"] = "data"
    tenant: Annotated[Name, Field(max_length=_MOST_TENANT_CHARACTERS)] | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.token is None) == (self.token_sha256 is None):
            raise ValueError("needs the token or its token_sha256, one of both")
        return self

    @property
    def digest(self) -> bytes:
        if self.token is None:
            return bytes.fromhex(self.token_sha256 or "")
        return _digest(self.token.get_secret_value())


class _File(Entry):
    tokens: Annotated[dict[Name, _Token], Field(min_length=1, max_length=_MOST_TOKENS)]


def authenticate_by(settings: Settings) -> Authenticate:
    """Return who a token lets in; without any token set, everybody who gets so far, as the operator.

    ``api_token`` is the operator's; those of the file ``tokens`` are whose it says. Raises ``ConfigError``.
    """
    known = {} if settings.tokens is None else _read(settings.tokens)
    if settings.api_token is not None:
        own = _digest(settings.api_token.get_secret_value())
        if own in known:
            raise ConfigError("tokens", f"{known[own].token_name} has the server's own api_token")
        known[own] = Tenant(token_name=_OWN_NAME)
    return _by_digest(known) if known else open_to_all


def _by_digest(known: Mapping[bytes, Tenant]) -> Authenticate:
    def authenticate(token: str | None) -> Tenant:
        sent, found = _digest(token or ""), None
        for digest, tenant in known.items():  # all of them: the time it takes tells nothing
            if hmac.compare_digest(digest, sent):
                found = tenant
        if found is None:
            raise AccessError("the token is missing or wrong: ask the server's operator for one")
        return found

    return authenticate


def _read(path: Path) -> dict[bytes, Tenant]:
    file = read_toml_file(path, "tokens", _File)
    known: dict[bytes, Tenant] = {}
    if _OWN_NAME in file.tokens:
        raise ConfigError(
            "tokens",
            f"{path}: tokens.{_OWN_NAME}: is what the log calls the server's own: choose another name",
        )
    for name, entry in file.tokens.items():
        if entry.digest in known:
            other = in_one_line(known[entry.digest].token_name)
            raise ConfigError("tokens", f"{path}: tokens.{in_one_line(name)}: is the same as {other}")
        known[entry.digest] = Tenant(entry.tenant or "", Role[entry.role.upper()], in_one_line(name))
    if any(entry.token for entry in file.tokens.values()):
        warn_of_readers(path, "tokens", "give token_sha256")
    return known


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
