"""Gives a command a flag for every setting, so that flags and settings cannot drift apart."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from api.setting_facts import is_repeatable, is_secret, setting_group, shown_default
from api.settings import Settings
from api.settings_sources import flag_name, load_settings

_METAVARS = (
    ("_bytes", "SIZE"), ("_s", "SECONDS"), ("_path", "DIR"), ("_file", "FILE"), ("model", "DIR"),
    ("lora", "NAME=DIR"),
    ("record_trace", "FILE"), ("retention", "FILE"),
)  # fmt: skip


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Replace the parameter ``settings`` of ``command`` by a flag for each setting, and ``--config``."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for name, parameter in signature.parameters.items() if name != "settings"]

    def run(config: Path | None, **given: Any) -> None:
        flags = {name: given.pop(name) for name in flag_settings()}
        command(settings=load_settings(flags, os.environ, config), **given)

    parameters = [*own, _config_flag(), *(_flag(name) for name in flag_settings())]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {}
    run.__doc__ = command.__doc__
    return run


def flag_settings() -> list[str]:
    """Return the settings that have a flag: all but secrets, which process lists would show."""
    return [name for name in Settings.model_fields if not is_secret(name)]


def _config_flag() -> inspect.Parameter:
    option = typer.Option("--config", help="File of settings (TOML); also PREFIXD_CONFIG.", metavar="FILE")
    return _parameter("config", Annotated[Path | None, option])


def _flag(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    option = typer.Option(
        flag_name(name),
        help=f"{field.description} [default: {shown_default(name)}]",
        metavar=_metavar(name),
        rich_help_panel=setting_group(name),
    )
    if is_repeatable(name):
        return _parameter(name, Annotated[list[str] | None, option])
    return _parameter(name, Annotated[str | None, option])


def _parameter(name: str, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _metavar(name: str) -> str:
    annotation = Settings.model_fields[name].annotation
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    return next((metavar for ending, metavar in _METAVARS if name.endswith(ending)), "TEXT")
