"""What is there: commands that only look."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from api.commands.admin.asking import Asking, asks_server, in_path
from api.commands.admin.choosing import takes_filter, takes_selection
from api.commands.admin.keeping_sheets import pins_sheets, quotas_sheets
from api.commands.admin.stored_sheets import (
    block_sheets,
    blocks_sheets,
    namespaces_sheets,
    overview_sheets,
    prefixes_sheets,
    resolved_sheets,
    tiers_sheets,
)

LIMIT = Annotated[int, typer.Option(help="How many to show; 0: all.", min=0)]
_ORDER = Annotated[
    Literal["bytes", "hits", "recent"],
    typer.Option("--by", help="The largest, the hottest, or those that were used last first."),
]


@asks_server
def overview(asking: Asking) -> None:
    """Show the whole in a few numbers: tiers, namespaces, clients, mode.

    For example:

        prefixd admin overview

        PREFIXD_TOKEN=secret prefixd admin overview --url http://10.0.0.7:8000 --json
    """
    asking.show(asking.get("overview", "tiers"), overview_sheets)


@asks_server
def tiers(asking: Asking) -> None:
    """Show what each tier holds and may hold, its state, and whether it is draining.

    For example:

        prefixd admin tiers
    """
    asking.show(asking.get("tiers"), tiers_sheets)


@asks_server
@takes_filter
def blocks(asking: Asking, wanted: dict[str, Any], limit: LIMIT = 50) -> None:
    """List blocks, all or those that have something in common.

    For example:

        prefixd admin blocks --model SmolLM2 --in-tier disk --idle-for 7d

        prefixd admin blocks --tenant @acme --pinned --limit 0 --json
    """
    asking.show(asking.listed("blocks", limit, **wanted), blocks_sheets)


@asks_server
def block(asking: Asking, key: Annotated[str, typer.Argument(help="Its key.")]) -> None:
    """Show all that there is to tell of one block.

    For example:

        prefixd admin block 6b7d2c1e0f9a4b5c8d3e2f1a0b9c8d7e
    """
    asking.show(asking.get(f"blocks/{in_path(key)}", "key"), block_sheets)


@asks_server
@takes_selection
def resolve(asking: Asking, selection: dict[str, Any]) -> None:
    """Show the blocks of a prompt (where a model is served) or of keys, and where each of them is.

    For example:

        prefixd admin resolve --file system-prompt.txt --chat

        prefixd admin resolve --prompt "You are a help desk." --salt tenant-7 --json
    """
    asking.show(asking.send("POST", "resolve", "data", {"selection": selection}), resolved_sheets)


@asks_server
def prefixes(asking: Asking, by: _ORDER = "bytes", limit: LIMIT = 20) -> None:
    """List the prefixes that are there: the largest, the hottest, or those that were used last.

    For example:

        prefixd admin prefixes --by hits --limit 10
    """
    asking.show(asking.listed("prefixes", limit, by=by), prefixes_sheets)


@asks_server
def namespaces(asking: Asking, limit: LIMIT = 50) -> None:
    """List the namespaces: which model, whose, how many bytes where, and when it last had a hit.

    For example:

        prefixd admin namespaces
    """
    asking.show(asking.listed("namespaces", limit), namespaces_sheets)


@asks_server
def pins(asking: Asking, limit: LIMIT = 50) -> None:
    """List what is pinned, and until when.

    For example:

        prefixd admin pins
    """
    asking.show(asking.listed("pins", limit), pins_sheets)


@asks_server
def quotas(asking: Asking) -> None:
    """List who may have how much of each tier and how much may be pinned, and what of it is used.

    For example:

        prefixd admin quotas
    """
    asking.show(asking.get("quotas"), quotas_sheets)
