"""``prefixd explain``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

_URL = typer.Option(help="The server [default: host and port of the settings].", metavar="URL")
_PROMPT = typer.Option("--prompt", "-p", help="Explain this prompt instead; it is not run.")
_FILE = typer.Option(help="Likewise, for the text of a file; - reads stdin.", metavar="PATH")
_CHAT = typer.Option("--chat", help="Put the prompt into the model's chat template, as one message.")
_SALT = typer.Option(help="The tenant's cache_salt; other users of this machine can see it meanwhile.")
_ADAPTER = typer.Option(help="The LoRA adapter to explain it for [default: the model alone].", metavar="NAME")
_JSON = typer.Option("--json", help="Print the server's answer as JSON.")


def explain(
    url: Annotated[str | None, _URL] = None,
    prompt: Annotated[str | None, _PROMPT] = None,
    file: Annotated[str | None, _FILE] = None,
    chat: Annotated[bool, _CHAT] = False,
    salt: Annotated[str | None, _SALT] = None,
    adapter: Annotated[str | None, _ADAPTER] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say what a running server decided about its last request, or would decide about a prompt, and why.

    Shows what was chosen, what the alternatives would have cost, and on a miss its cause. A server that asks
    for a token gets the one of PREFIXD_API_TOKEN, or of the file that PREFIXD_CONFIG names.

    For example:

        prefixd explain

        prefixd explain --file document.txt --url http://127.0.0.1:9000

        prefixd explain --prompt "Why is the sky blue?" --chat --salt tenant-7 --json
    """
    import json
    import time

    from api.explain.client import Server
    from api.explain.text import account_text, explanation_text
    from api.settings_sources import load_settings

    text = _text_of(prompt, file)
    _refuse_lone(text, chat=chat, salt=salt, adapter=adapter)
    _refuse_undecoded("prompt" if file is None else "file", text)
    _refuse_undecoded("salt", salt)
    _refuse_undecoded("adapter", adapter)
    settings = load_settings({}, os.environ)
    token = settings.api_token.get_secret_value() if settings.api_token else None
    server = Server(url or _own_url(settings.host, settings.port), token)
    if text is None:
        answer = server.last_account()
        shown = account_text(answer, time.time()) if answer else "no request has ended yet"
    else:
        asked = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        answer = server.explanation({**asked, "cache_salt": salt, "model": adapter})
        shown = explanation_text(answer)
    typer.echo(json.dumps(answer, indent=2) if as_json else shown)


def _text_of(prompt: str | None, file: str | None) -> str | None:
    from kvstore.errors import ConfigError

    if prompt is not None and file is not None:
        raise ConfigError("prompt", "give either --prompt or --file")
    if file is None:
        return prompt
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("file", f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError("file", f"{file} is not UTF-8 text") from None


def _refuse_lone(text: str | None, *, chat: bool, **options: str | None) -> None:
    from kvstore.errors import ConfigError

    given = ["chat"] if chat else [name for name, value in options.items() if value is not None]
    if text is None and given:
        raise ConfigError(given[0], "belongs to a prompt; give --prompt or --file")


def _refuse_undecoded(setting: str, text: str | None) -> None:
    """Refuse bytes that the command line or stdin gave and that are no text."""
    from kvstore.errors import ConfigError

    try:
        (text or "").encode()
    except UnicodeEncodeError:
        raise ConfigError(setting, "is not UTF-8 text") from None


def _own_url(host: str, port: int) -> str:
    """Return where a server with these settings is found from this machine."""
    reachable = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where it listens
    return f"http://[{reachable}]:{port}" if ":" in reachable else f"http://{reachable}:{port}"
