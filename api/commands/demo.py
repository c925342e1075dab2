"""``prefixd demo``."""

from __future__ import annotations

import signal

import typer


def demo() -> None:
    """See a real model answer from cached prefixes: questions about one text, with a restart in between.

    Needs no configuration and no network, takes about a minute, and leaves nothing behind but the model.
    Ends with an error if an answer is not that of a run without any cache, or if nothing was cached.

    Example:

        prefixd demo
    """
    from api.demo.run import run_demo

    # As Ctrl-C does: the server that was started is stopped, and its folder removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not run_demo():
        raise typer.Exit(1)
