"""Where a Redis or Valkey server is, and how to log in there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from kvstore.errors import ConfigError

DEFAULT_PORT = 6379
DEFAULT_TIMEOUT_S = 2.0

_FORMS = "redis://HOST[:PORT][/DB], rediss://HOST[:PORT][/DB] (TLS) or unix:///PATH[?db=DB]"


@dataclass(frozen=True)
class RedisAddress:
    """One server. ``host`` and ``port``, or the ``path`` of a Unix socket; ``tls`` on TCP alone.

    Its text forms hold neither user nor password. ``timeout_s`` bounds connecting, and every wait
    for the server after that.
    """

    host: str = ""
    port: int = DEFAULT_PORT
    path: str = ""
    db: int = 0
    tls: bool = False
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    timeout_s: float = DEFAULT_TIMEOUT_S

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        username: str | None = None,
        password: str | None = None,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> RedisAddress:
        """Read a URL; ``username`` and ``password`` win over those in it. Raises ``ConfigError``."""
        try:
            parts = urlsplit(url)
            place = _unix_place(parts) if parts.scheme == "unix" else _tcp_place(parts)
        except ValueError:
            # The URL may hold a password, and so may what the parser says of it.
            raise ConfigError("redis_url", f"cannot be read; its forms are {_FORMS}") from None
        address = replace(
            place,
            username=username or unquote(parts.username or "") or None,
            password=password or unquote(parts.password or "") or None,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
            timeout_s=timeout_s,
        )
        address.refuse_what_cannot_be()
        return address

    def refuse_what_cannot_be(self) -> None:
        """Raise ``ConfigError`` for files that are missing or not for this URL, and for an odd timeout."""
        files = {
            "redis_ca_file": self.ca_file,
            "redis_cert_file": self.cert_file,
            "redis_key_file": self.key_file,
        }
        for setting, file in files.items():
            if file and not self.tls:
                raise ConfigError(setting, "is for a redis_url that begins with rediss://")
            if file and not file.is_file():
                raise ConfigError(setting, f"there is no file {file}")
        if self.key_file and not self.cert_file:
            raise ConfigError("redis_key_file", "belongs to a redis_cert_file, which is not set")
        if not (self.timeout_s > 0 and math.isfinite(self.timeout_s)):
            raise ConfigError("redis_timeout_s", f"must be positive, not {self.timeout_s}")

    def __str__(self) -> str:
        if self.path:
            return f"unix://{self.path}?db={self.db}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"redis{'s' if self.tls else ''}://{host}:{self.port}/{self.db}"


def _unix_place(parts: SplitResult) -> RedisAddress:
    options = parse_qs(parts.query, strict_parsing=bool(parts.query))
    if not parts.path or parts.hostname or set(options) - {"db"}:
        raise ValueError("not a path and a database")
    return RedisAddress(path=unquote(parts.path), db=_database(options.get("db", [""])[0]))


def _tcp_place(parts: SplitResult) -> RedisAddress:
    if parts.scheme not in {"redis", "rediss"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("not a host and a database")
    db = _database(parts.path.strip("/"))
    return RedisAddress(parts.hostname, parts.port or DEFAULT_PORT, db=db, tls=parts.scheme == "rediss")


def _database(digits: str) -> int:
    if digits and not digits.isdecimal():
        raise ValueError("not a database")
    return int(digits or 0)
