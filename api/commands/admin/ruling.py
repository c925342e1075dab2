"""Who may have how much, which tiers take blocks, and the mode: commands that change it."""

from __future__ import annotations

from typing import Annotated

import typer

from api.commands.admin.asking import Asking, asks_server, in_path
from api.commands.admin.choosing import tenant_named
from api.commands.admin.decision_sheets import mode_sheets
from api.commands.admin.doing import NO_WAIT, begin
from api.commands.admin.keeping_sheets import budget_sheets, draining_sheets, quota_sheets
from api.quantities import parse_bytes
from api.setting_types import ModeName
from kvstore.errors import ConfigError

_BOUNDS = typer.Argument(
    help="Such as disk=10GiB; none for no bound. What is not named stays.", metavar="[TIER=SIZE]..."
)
_TIER = Annotated[str, typer.Argument(help="Its name.")]


@asks_server
def budget(
    asking: Asking,
    digest: Annotated[str, typer.Argument(help="The namespace's digest.")],
    bounds: Annotated[list[str], _BOUNDS],
) -> None:
    """Bound what a namespace may have of tiers, until the server's next start.

    For example:

        prefixd admin budget 0f1e2d3c4b5a69788796a5b4c3d2e1f0 disk=10GiB host=none
    """
    body = {"tiers": _bounds(bounds)}
    asking.show(asking.send("PUT", f"namespaces/{in_path(digest)}/budget", "tiers", body), budget_sheets)


@asks_server
def quota(
    asking: Asking,
    tenant: Annotated[
        str, typer.Argument(help="Its digest, unsalted, others, or @NAME for a token's tenant.")
    ],
    bounds: Annotated[list[str] | None, _BOUNDS] = None,
    pin: Annotated[str | None, typer.Option(help="What it may pin in all tiers.", metavar="SIZE")] = None,
) -> None:
    """Bound what a tenant may have of tiers, and may pin, until the server's next start.

    For example:

        prefixd admin quota @acme disk=20GiB host=1GiB --pin 512MiB

        prefixd admin quota others disk=none
    """
    body = {"tiers": _bounds(bounds or [])} | ({} if pin is None else {"pin_bytes": _bytes("pin", pin)})
    path = f"quotas/{in_path(tenant_named(tenant) or '')}"
    asking.show(asking.send("PUT", path, "tiers", body), quota_sheets)


@asks_server
def drain(
    asking: Asking,
    tier: _TIER,
    to: Annotated[str | None, typer.Option(help="Where what it has moves to.", metavar="TIER")] = None,
    no_wait: NO_WAIT = False,
) -> None:
    """Let a tier take no new blocks from now on; with --to, what it has moves there.

    For example:

        prefixd admin drain disk --to redis
    """
    body = {} if to is None else {"target": to}
    begin(asking, "POST", f"tiers/{in_path(tier)}/drain", body, no_wait=no_wait)


@asks_server
def undrain(asking: Asking, tier: _TIER) -> None:
    """Let a tier take blocks again.

    For example:

        prefixd admin undrain disk
    """
    asking.show(asking.send("DELETE", f"tiers/{in_path(tier)}/drain", "draining"), draining_sheets)


@asks_server
def mode(
    asking: Asking,
    new: Annotated[ModeName | None, typer.Argument(help="Set it to this, from now on.")] = None,
) -> None:
    """Show or set how far tiers are trusted by requests that do not say: off, observe, verify or serve.

    For example:

        prefixd admin mode

        prefixd admin mode observe
    """
    if new is None:
        asking.show(asking.get("mode", "mode"), mode_sheets)
    else:
        asking.show(asking.send("PUT", "mode", "mode", {"mode": new}), mode_sheets)


def _bounds(texts: list[str]) -> dict[str, int | None]:
    bounds: dict[str, int | None] = {}
    for text in texts:
        tier, separator, size = text.partition("=")
        if not separator or not tier:
            raise ConfigError("bounds", f"{text!r} is not written like disk=10GiB")
        bounds[tier] = None if size == "none" else _bytes(tier, size)
    return bounds


def _bytes(what: str, text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(what, f"{text!r}: {error}") from None
