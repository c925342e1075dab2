"""``prefixd explain``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from api.commands.texts import checked, text_of
from kvstore.errors import ConfigError

_URL = typer.Option(
    help="Where the server answers; also PREFIXD_URL [default: host and port of the settings].", metavar="URL"
)
_TOKEN_FILE = typer.Option(help="File with the token to send; also PREFIXD_TOKEN holds one.", metavar="FILE")
_PROMPT = typer.Option("--prompt", "-p", help="Explain this prompt instead; it is not run.")
_FILE = typer.Option(help="Likewise, for the text of a file; - reads stdin.", metavar="PATH")
_CHAT = typer.Option("--chat", help="Put the prompt into the model's chat template, as one message.")
_SALT = typer.Option(help="The tenant's cache_salt; other users of this machine can see it meanwhile.")
_ADAPTER = typer.Option(help="The LoRA adapter to explain it for [default: the model alone].", metavar="NAME")
_JSON = typer.Option("--json", help="Print the server's answer as JSON.")


def explain(
    url: Annotated[str | None, _URL] = None,
    token_file: Annotated[Path | None, _TOKEN_FILE] = None,
    prompt: Annotated[str | None, _PROMPT] = None,
    file: Annotated[str | None, _FILE] = None,
    chat: Annotated[bool, _CHAT] = False,
    salt: Annotated[str | None, _SALT] = None,
    adapter: Annotated[str | None, _ADAPTER] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say what a running server decided about its last request, or would decide about a prompt, and why.

    Shows what was chosen, what the alternatives would have cost, and on a miss its cause. A server on this
    machine gets the api_token of the settings, if no other token is named.

    For example:

        prefixd explain

        prefixd explain --file document.txt --url http://127.0.0.1:9000

        prefixd explain --prompt "Why is the sky blue?" --chat --salt tenant-7 --json
    """
    import json
    import time

    from api.client.address import server_of
    from api.explain.text import account_text, explanation_text

    text = text_of(prompt, file)
    _refuse_lone(text, chat=chat, salt=checked("salt", salt), adapter=checked("adapter", adapter))
    server = server_of(url, token_file, os.environ)
    if text is None:
        listed = server.ask("GET", "/admin/plans", wants="data", query={"limit": 1})["data"]
        answer = listed[0] if listed else None
        shown = account_text(answer, time.time()) if answer else "no request has ended yet"
    else:
        asked = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        body = {**asked, "cache_salt": salt, "model": adapter}
        answer = server.ask("POST", "/admin/explain", body, wants="blocks")
        shown = explanation_text(answer)
    typer.echo(json.dumps(answer, indent=2) if as_json else shown)


def _refuse_lone(text: str | None, *, chat: bool, **options: str | None) -> None:
    given = ["chat"] if chat else [name for name, value in options.items() if value is not None]
    if text is None and given:
        raise ConfigError(given[0], "belongs to a prompt; give --prompt or --file")
