"""One generation in the terminal: the text on stdout, where its tokens came from on stderr."""

from __future__ import annotations

import sys
from contextlib import closing

from api.prompts import encode_chat, encode_text
from engine_adapter.assemble import assemble
from engine_adapter.engine.events import Delta, Finished, Usage
from engine_adapter.engine.request import Request, Sampling
from engine_adapter.serving_config import ServingConfig
from kvstore.errors import ServerFailedError


def generate_in_terminal(
    config: ServingConfig, prompt: str, sampling: Sampling, *, is_chat: bool, adapter: str | None
) -> None:
    """Continue ``prompt`` and print as it comes. Raises what assembling and the request raise."""
    with closing(assemble(config)) as serving:
        for tier, reason in serving.degraded.items():
            sys.stderr.write(f"prefixd: {tier}: {reason}\n")
        if is_chat:
            prompt_ids = encode_chat(serving.tokenizer, [{"role": "user", "content": prompt}])
        else:
            prompt_ids = encode_text(serving.tokenizer, prompt)
        for event in serving.engine.stream(Request(prompt_ids, sampling, lora=adapter)):
            _show(event)


def summary(usage: Usage) -> str:
    """Return one line that says where the prompt's tokens came from and how long things took."""
    sources = ", ".join(f"{count} {source}" for source, count in usage.tokens_by_source.items() if count)
    times = [("TTFT", usage.ttft_s), ("ITL", usage.itl_s)]
    shown = ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in times if value is not None)
    return f"{usage.prompt_tokens} prompt tokens ({sources}), {usage.completion_tokens} generated; {shown}"


def _show(event: Delta | Finished) -> None:
    if isinstance(event, Delta):
        sys.stdout.write(event.text)
        sys.stdout.flush()
        return
    sys.stdout.write("\n")
    sys.stdout.flush()
    if event.reason == "error":
        raise ServerFailedError(event.error or "the engine failed")
    sys.stderr.write(f"{summary(event.usage)}\n")
