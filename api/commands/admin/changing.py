"""What is kept, and where: commands that change it."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer

from api.commands.admin.asking import Asking, asks_server, confirm, in_path, print_sheet
from api.commands.admin.choosing import duration, takes_selection
from api.commands.admin.doing import DRY, NO_WAIT, YES, ask_about, asks_first, begin, do, planned_sheets
from api.commands.admin.keeping_sheets import changed_sheets, pinned_sheets
from api.commands.admin.stored_sheets import tiers_sheets
from api.commands.parameters import given
from kvstore.errors import ConfigError

_TIERS = Annotated[
    list[str] | None, typer.Option("--tier", help="In this tier alone; again for more.", metavar="TIER")
]
_AGE = "30d, 12h, 15min, 90s"


@asks_server
@takes_selection
def pin(
    asking: Asking,
    selection: dict[str, Any],
    for_: Annotated[str | None, typer.Option("--for", help="How long.", metavar=_AGE)] = None,
    until: Annotated[
        str | None, typer.Option(help="Until when, such as 2030-01-31T08:00.", metavar="TIME")
    ] = None,
    tier: _TIERS = None,
) -> None:
    """Keep blocks, and those they follow, for a time; all of it or nothing.

    For example:

        prefixd admin pin --file system-prompt.txt --for 12h

        prefixd admin pin 6b7d2c1e0f9a4b5c8d3e2f1a0b9c8d7e --until 2030-01-31T08:00 --tier disk
    """
    if (for_ is None) == (until is None):
        raise ConfigError("for", "say how long with --for, or with --until")
    body = {"selection": selection, "for_s": duration("for", for_), "until_s": _epoch_s(until), "tiers": tier}
    asking.show(asking.send("POST", "pins", "absent", given(body)), pinned_sheets)


@asks_server
@takes_selection
def unpin(asking: Asking, selection: dict[str, Any], tier: _TIERS = None) -> None:
    """Let pinned blocks be ordinary at once.

    For example:

        prefixd admin unpin --file system-prompt.txt
    """
    body = given({"selection": selection, "tiers": tier})
    asking.show(asking.send("POST", "unpin", "blocks", body), changed_sheets)


@asks_server
@takes_selection
def ttl(
    asking: Asking,
    selection: dict[str, Any],
    ttl: Annotated[
        str | None, typer.Option(help="How long they live from now, unless used.", metavar=_AGE)
    ] = None,
    hard_ttl: Annotated[
        str | None, typer.Option(help="How long after their first write at most.", metavar=_AGE)
    ] = None,
) -> None:
    """Set when blocks end.

    For example:

        prefixd admin ttl --model SmolLM2 --ttl 30d

        prefixd admin ttl --tenant @acme --hard-ttl 90d
    """
    lives = {"ttl_s": duration("ttl", ttl), "hard_ttl_s": duration("hard_ttl", hard_ttl)}
    if not given(lives):
        raise ConfigError("ttl", "give --ttl, --hard-ttl, or both")
    asking.show(
        asking.send("POST", "ttl", "blocks", {"selection": selection, **given(lives)}), changed_sheets
    )


@asks_server
@takes_selection
@asks_first
def evict(asking: Asking, selection: dict[str, Any], how: dict[str, bool], tier: _TIERS = None) -> None:
    """Remove blocks; shows first what would go, and asks. What is in use or pinned stays.

    For example:

        prefixd admin evict --idle-for 30d --dry-run

        prefixd admin evict --model old-model --tier disk --yes

        prefixd admin evict --file leaked-prompt.txt --salt tenant-7
    """
    do(asking, "evict", given({"selection": selection, "tiers": tier}), **how)


@asks_server
@takes_selection
@asks_first
def move(
    asking: Asking,
    selection: dict[str, Any],
    how: dict[str, bool],
    to: Annotated[str, typer.Option(help="The tier they go to.", metavar="TIER")],
    source: Annotated[
        str | None, typer.Option("--from", help="The tier they leave [default: all].", metavar="TIER")
    ] = None,
) -> None:
    """Bring blocks from one tier to another; shows first what would move and what makes room, and asks.

    For example:

        prefixd admin move --idle-for 1h --from host --to disk --dry-run
    """
    do(asking, "move", given({"selection": selection, "source": source, "target": to}), **how)


@asks_server
@takes_selection
def warm(
    asking: Asking,
    selection: dict[str, Any],
    to: Annotated[
        str | None, typer.Option(help="Into this tier [default: the fastest].", metavar="TIER")
    ] = None,
    dry_run: DRY = False,
    no_wait: NO_WAIT = False,
) -> None:
    """Bring blocks into a fast tier as well; what no tier has of a prompt is computed first.

    For example:

        prefixd admin warm --file system-prompt.txt --chat

        prefixd admin warm --tenant @acme --to host --dry-run
    """
    do(
        asking,
        "warm",
        given({"selection": selection, "target": to}),
        dry_run=dry_run,
        yes=True,
        no_wait=no_wait,
    )


@asks_server
@takes_selection
def verify(asking: Asking, selection: dict[str, Any], no_wait: NO_WAIT = False) -> None:
    """Read copies of blocks in every tier and compare their checksums; what is bad goes.

    The exit code is 1 if anything was bad.

    For example:

        prefixd admin verify --all

        prefixd admin verify --in-tier disk --no-wait
    """
    begin(asking, "POST", "verify", {"selection": selection}, no_wait=no_wait)


@asks_server
@asks_first
def drop(
    asking: Asking,
    how: dict[str, bool],
    digest: Annotated[str, typer.Argument(help="The namespace's digest.")],
) -> None:
    """Remove all that there is of a namespace, such as an old model's; shows first what would go, and asks.

    For example:

        prefixd admin drop 0f1e2d3c4b5a69788796a5b4c3d2e1f0
    """
    path = f"namespaces/{in_path(digest)}"
    if how["dry_run"] or not how["yes"]:
        query = {"dry_run": "true"}
        planned = asking.server.ask("DELETE", f"/admin/{path}", wants="num_selected", query=query)
        if how["dry_run"]:
            asking.show(planned, planned_sheets)
            return
        ask_about(planned)
    begin(asking, "DELETE", path, no_wait=how["no_wait"])


@asks_server
def clear(
    asking: Asking,
    tier: Annotated[str | None, typer.Option(help="This tier alone [default: all].", metavar="TIER")] = None,
    yes: YES = False,
    no_wait: NO_WAIT = False,
) -> None:
    """Remove all that is not in use, pinned or not, of all tenants; shows what is there, and asks.

    For example:

        prefixd admin clear --tier host --yes
    """
    if not yes:
        for sheet in tiers_sheets(asking.get("tiers"), time.time()):
            print_sheet(sheet, err=True)
        confirm(f"Clear {tier or 'all of them'}, pinned blocks as well?", yes=yes)
    begin(asking, "POST", "clear", given({"tier": tier}), no_wait=no_wait)


def _epoch_s(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ConfigError("until", f"{text!r} is no time such as 2030-01-31T08:00") from None
