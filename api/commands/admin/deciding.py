"""What is decided about requests, and what is learnt from them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from api.commands.admin.asking import Asking, asks_server
from api.commands.admin.decision_sheets import audit_sheets, plans_sheets, shadows_sheets
from api.commands.admin.history_sheets import history_sheets
from api.commands.admin.looking import LIMIT


@asks_server
def plans(asking: Asking, limit: LIMIT = 20) -> None:
    """List what was decided about the last requests, why, and what came of it.

    For example:

        prefixd admin plans --limit 5
    """
    asking.show(asking.listed("plans", limit), plans_sheets)


@asks_server
def shadows(asking: Asking) -> None:
    """Show what other eviction policies would have hit, and how far a recording has come.

    For example:

        prefixd admin shadows
    """
    asking.show(asking.get("shadows", "shadows"), shadows_sheets)


@asks_server
def audit(
    asking: Asking,
    share: Annotated[
        float | None, typer.Option(help="Let it take this share of the idle time; 0 stops it.", min=0, max=1)
    ] = None,
) -> None:
    """Show what was computed once more in idle time and compared, and what was wrong; or set its share.

    For example:

        prefixd admin audit

        prefixd admin audit --share 0.1
    """
    if share is None:
        asking.show(asking.get("audit", "share"), audit_sheets)
    else:
        asking.show(asking.send("PUT", "audit", "share", {"share": share}), audit_sheets)


@asks_server
def history(
    asking: Asking,
    span: Annotated[Literal["hour", "day"], typer.Argument(help="How far back.")] = "hour",
) -> None:
    """Show how the last hour or day went: hit ratio, TTFT by source, tokens and bytes.

    For example:

        prefixd admin history

        prefixd admin history day --json
    """
    asking.show(asking.get("history", "series", span=span), history_sheets)
