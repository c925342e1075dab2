"""``prefixd explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.admin.asking import Asking, asks_server
from api.commands.texts import checked, text_of
from kvstore.errors import ConfigError

_PROMPT = typer.Option("--prompt", "-p", help="Explain this prompt instead; it is not run.")
_FILE = typer.Option(help="Likewise, for the text of a file; - reads stdin.", metavar="PATH")
_CHAT = typer.Option("--chat", help="Put the prompt into the model's chat template, as one message.")
_SALT = typer.Option(help="The tenant's cache_salt; other users of this machine can see it meanwhile.")
_ADAPTER = typer.Option(help="The LoRA adapter to explain it for [default: the model alone].", metavar="NAME")


@asks_server
def explain(
    asking: Asking,
    prompt: Annotated[str | None, _PROMPT] = None,
    file: Annotated[str | None, _FILE] = None,
    chat: Annotated[bool, _CHAT] = False,
    salt: Annotated[str | None, _SALT] = None,
    adapter: Annotated[str | None, _ADAPTER] = None,
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

    from api.explanation_text import account_text, explanation_text

    text = text_of(prompt, file)
    _refuse_lone(text, chat=chat, salt=checked("salt", salt), adapter=checked("adapter", adapter))
    if text is None:
        listed = asking.get("plans", limit=1)["data"]
        answer = listed[0] if listed else None
        shown = account_text(answer, time.time()) if answer else "no request has ended yet"
    else:
        asked = {"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text}
        body = {**asked, "cache_salt": salt, "model": adapter}
        answer = asking.send("POST", "explain", "blocks", body)
        shown = explanation_text(answer)
    typer.echo(json.dumps(answer, indent=2) if asking.as_json else shown)


def _refuse_lone(text: str | None, *, chat: bool, **options: str | None) -> None:
    given = ["chat"] if chat else [name for name, value in options.items() if value is not None]
    if text is None and given:
        raise ConfigError(given[0], "belongs to a prompt; give --prompt or --file")
