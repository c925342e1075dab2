"""Which server to ask and with which token: from flags, the environment, or the settings of a server here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from api.client.server import Server
from api.settings import Settings, is_loopback
from api.settings_sources import TOKEN_VARIABLE, URL_VARIABLE, load_settings
from kvstore.errors import ConfigError


def server_of(url: str | None, token_file: Path | None, environ: Mapping[str, str]) -> Server:
    """Return the server that is meant. Raises ``ConfigError``.

    Without a URL it is the one that the settings describe, and without a token that one's ``api_token``,
    which is sent to no other machine.
    """
    url = url or environ.get(URL_VARIABLE)
    if url and url.startswith("unix:"):
        raise ConfigError(
            "url", "the socket is for engines; name the server's HTTP address, as it printed it"
        )
    token = _token_in(token_file) if token_file else environ.get(TOKEN_VARIABLE)
    if url and token:
        return Server(url, token)
    if url and not _is_here(url):
        return Server(url)
    settings = load_settings({}, environ)
    return Server(url or _own_url(settings), token or _own_token(settings))


def _token_in(file: Path) -> str:
    try:
        token = file.read_text("ascii").strip()
    except OSError as error:
        raise ConfigError("token_file", f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("token_file", f"{file} holds no token") from None
    if not token or not token.isprintable() or " " in token:
        raise ConfigError("token_file", f"{file} holds no token")
    return token


def _is_here(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


def _own_token(settings: Settings) -> str | None:
    return settings.api_token.get_secret_value() if settings.api_token else None


def _own_url(settings: Settings) -> str:
    """Return where a server with these settings is found from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - where it listens
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
