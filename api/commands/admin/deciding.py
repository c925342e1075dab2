"""What is decided about requests, and what is learnt from them."""

from __future__ import annotations

from api.commands.admin.asking import Asking, asks_server
from api.commands.admin.decision_sheets import plans_sheets, shadows_sheets
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
