"""Where settings come from: defaults, then a TOML file, the environment and flags, the last one wins."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from api.quantities import format_bytes
from api.setting_facts import is_secret
from api.settings import Settings
from kvstore.errors import ConfigError

PREFIX = "PREFIXD_"
CONFIG_VARIABLE = "PREFIXD_CONFIG"
# Of those who ask a server: where it is, and their token.
URL_VARIABLE = "PREFIXD_URL"
TOKEN_VARIABLE = "PREFIXD_TOKEN"  # noqa: S105  what it is called, not what it is
# Kubernetes sets these in every container beside a service that is called prefixd.
_SERVICE_LINK = re.compile(r"PREFIXD_(SERVICE_(HOST|PORT)|PORT_\d+_(TCP|UDP))(_.*)?")


@dataclass(frozen=True)
class Given:
    """A value as it was given, and the words that tell its giver where it stands."""

    value: object
    place: str


def load_settings(
    flags: Mapping[str, str | list[str] | None], environ: Mapping[str, str], config: Path | None = None
) -> Settings:
    """Return the settings; ``config`` or PREFIXD_CONFIG names the file. Raises ``ConfigError``."""
    path = config or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    given = _from_file(path) if path else {}
    given |= _from_environment(environ)
    given |= {name: Given(value, flag_name(name)) for name, value in flags.items() if value is not None}
    try:
        return Settings.model_validate({name: entry.value for name, entry in given.items()})
    except ValidationError as error:
        raise _config_error(error.errors(include_url=False)[0], given) from None


def flag_name(name: str) -> str:
    """Return the command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def variable_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + name.upper()


def check_budgets(settings: Settings, memory_bytes: int | None = None) -> None:
    """Refuse memory budgets that this machine cannot hold. Raises ``ConfigError``."""
    memory = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if settings.host_bytes > memory:
        asked, held = format_bytes(settings.host_bytes), format_bytes(memory)
        raise ConfigError("host_bytes", f"{asked} is more than the machine's {held} of memory; choose less")


def check_redis(settings: Settings) -> None:
    """Refuse to log in at, or trust, a server that no setting names. Raises ``ConfigError``."""
    if settings.redis_url is not None:
        return
    for name in ("redis_username", "redis_password", "redis_ca_file", "redis_cert_file", "redis_key_file"):
        if getattr(settings, name) is not None:
            variable = variable_name("redis_url")
            raise ConfigError(name, f"is for a Redis tier, and there is none; set {variable}, or take it out")


def _from_file(path: Path) -> dict[str, Given]:
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"{path} is not valid TOML: {error}") from None
    return {name: _from_file_entry(name, value, f"in {path}") for name, value in values.items()}


def _from_file_entry(name: str, value: object, place: str) -> Given:
    _check_known(name, place)
    if isinstance(value, bool):
        raise ConfigError(name, f"{str(value).lower()} ({place}): no setting is true or false")
    return Given(value, place)


def _from_environment(environ: Mapping[str, str]) -> dict[str, Given]:
    given = {}
    for variable, value in environ.items():
        if not value or not variable.startswith(PREFIX) or _is_not_ours(variable, value):
            continue
        name = variable.removeprefix(PREFIX).lower()
        place = f"environment variable {variable}"
        _check_known(name, place)
        given[name] = Given(value, place)
    return given


def _is_not_ours(variable: str, value: str) -> bool:
    service_link = _SERVICE_LINK.fullmatch(variable) or value.startswith(("tcp://", "udp://"))
    return variable in {CONFIG_VARIABLE, URL_VARIABLE, TOKEN_VARIABLE} or bool(service_link)


def _check_known(name: str, place: str) -> None:
    if name in Settings.model_fields:
        return
    near = difflib.get_close_matches(name, Settings.model_fields, n=1)
    advice = f"did you mean {near[0]}?" if near else "see docs/settings.md for those there are"
    raise ConfigError(name, f"no such setting ({place}); {advice}")


def _config_error(fault: Any, given: Mapping[str, Given]) -> ConfigError:
    """Name the setting, where it stands, what is wrong and what it means, in one line."""
    reason = str(fault["msg"]).removeprefix("Value error, ")
    if not fault["loc"]:
        name, _, reason = reason.partition(": ")
        return ConfigError(name, reason)
    name = str(fault["loc"][0])
    meaning = Settings.model_fields[name].description
    wanted = reason.replace("Input should be", "must be")
    return ConfigError(name, f"{_shown(name, given[name])}: {wanted}. {meaning}")


def _shown(name: str, entry: Given) -> str:
    return entry.place if is_secret(name) else f"{entry.value!r} ({entry.place})"
