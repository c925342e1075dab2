"""The command ``prefixd``."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from api.commands.admin.group import admin
from api.commands.bench import bench
from api.commands.demo import demo
from api.commands.doctor import doctor
from api.commands.explain import explain
from api.commands.generate import generate
from api.commands.plan import plan
from api.commands.serve import serve
from api.commands.simulate import simulate
from api.commands.version import show_version
from kvstore.errors import ConfigError, PluginError, PrefixdError

USAGE_ERROR = 2
FAILURE = 1


class OneLineErrors(TyperGroup):
    """Shows an error raised on purpose as one line on stderr, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except PrefixdError as error:
            typer.echo(f"prefixd: {error}", err=True)
            raise typer.Exit(
                USAGE_ERROR if isinstance(error, ConfigError | PluginError) else FAILURE
            ) from None


def build_cli() -> typer.Typer:
    """Return the command line; a subcommand is one function of ``api.commands``."""
    cli = typer.Typer(
        name="prefixd",
        cls=OneLineErrors,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
    )
    cli.callback()(_start)
    cli.command("serve")(serve)
    cli.command("generate")(generate)
    cli.command("demo")(demo)
    cli.add_typer(bench, name="bench")
    cli.command("plan")(plan)
    cli.command("simulate")(simulate)
    cli.command("explain")(explain)
    cli.add_typer(admin, name="admin")
    cli.command("doctor")(doctor)
    cli.command("version")(show_version)
    return cli


def main() -> None:
    """Run the command line."""
    build_cli()()


def _show_version(wanted: bool) -> None:
    if wanted:
        show_version()
        raise typer.Exit


def _start(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Keep an LLM server's prefixes in tiers of memory and disk, and serve models from them."""
