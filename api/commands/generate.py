"""``prefixd generate``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from api.commands.flags import takes_settings
from api.serving_config import serving_config
from api.settings import Settings
from api.settings_sources import check_budgets


@takes_settings
def generate(
    settings: Settings,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="The prompt; - reads it from stdin.")],
    chat: Annotated[bool, typer.Option("--chat", help="Put it into the model's chat template.")] = False,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Most tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", help="0 always takes the likeliest.")] = 0.0,
    adapter: Annotated[
        str | None, typer.Option("--adapter", help="Answer with this adapter of --lora.", metavar="NAME")
    ] = None,
) -> None:
    """Continue one prompt in the terminal, and say where its tokens came from.

    For example:

        prefixd generate --model ~/models/SmolLM2-135M-Instruct --chat --prompt "Why is the sky blue?"

        prefixd generate --model ~/models/Qwen3-0.6B --prompt - < document.txt

        prefixd generate --model ~/models/Qwen3-0.6B --lora sql=adapters/sql --adapter sql --prompt "Who?"
    """
    check_budgets(settings)
    config = serving_config(settings)
    text = sys.stdin.read() if prompt == "-" else prompt

    from api.terminal import generate_in_terminal
    from engine_adapter.engine.request import Sampling

    sampling = Sampling(temperature=temperature, max_tokens=max_tokens)
    generate_in_terminal(config, text, sampling, is_chat=chat, adapter=adapter)
