"""The retention file: who may keep what, and for how long, as its TOML says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from api.quantities import parse_duration
from api.setting_types import Bytes, Name
from api.toml_file import Entry, in_one_line, read_toml_file, warn_of_readers
from engine_adapter.retaining import PrefixRule, RetentionPlan
from kvstore.errors import ConfigError
from kvstore.namespace import salt_digest, tenant_digest
from kvstore.retention import MAX_LIFETIME_S, Lifetime, TenantRule

_MOST_ENTRIES = 10_000


def _read_duration(value: object) -> object:
    return parse_duration(value) if isinstance(value, str) else value


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("must not be true or false")  # noqa: TRY004 - pydantic shows these alone
    return value


Duration = Annotated[
    float,
    Field(gt=0, le=MAX_LIFETIME_S, allow_inf_nan=False),
    BeforeValidator(_read_duration),
    BeforeValidator(_no_bool),
]
Size = Annotated[Bytes, BeforeValidator(_no_bool)]
Tier = Literal["host", "disk", "redis"]
Quotas = dict[Tier, Size]
_DIGEST = re.compile(r"[0-9a-f]{32}")


def _require_digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError("must be a digest: 32 digits from 0 to 9 and a to f")
    return text


Digest = Annotated[str, AfterValidator(_require_digest)]


def _by_name(quotas: Mapping[Tier, int]) -> dict[str, int]:
    return {str(tier): quota for tier, quota in quotas.items()}


class _Life(Entry):
    ttl: Duration | None = None
    hard_ttl: Duration | None = None

    def lifetime(self) -> Lifetime:
        return Lifetime(self.ttl, self.hard_ttl)


class _Rule(_Life):
    quotas: Quotas = Field(default_factory=dict)
    pin_bytes: Size = 0

    def rule(self) -> TenantRule:
        return TenantRule(self.lifetime(), _by_name(self.quotas), self.pin_bytes)


class _Tenant(_Rule):
    salt: SecretStr | None = None
    salt_digest: Digest | None = None
    tenant: Name | None = None

    @model_validator(mode="after")
    def _is_somebody(self) -> Self:
        if [self.salt, self.salt_digest, self.tenant].count(None) != 2:
            raise ValueError(
                "needs one of: the tenant's salt, its salt_digest, or tenant (its name at tokens)"
            )
        return self

    @property
    def digest(self) -> str:
        if self.tenant is not None:
            return tenant_digest(self.tenant)
        if self.salt is None:
            return self.salt_digest or ""
        secret = self.salt.get_secret_value()
        return salt_digest(secret) if secret else ""


class _Namespace(Entry):
    quotas: Quotas


class _Prefix(_Life):
    text: Annotated[str, Field(min_length=1)] | None = None
    token_ids: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] | None = None
    tenant: Name | None = None
    lora: Name | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if (self.text is None) == (self.token_ids is None):
            raise ValueError("needs the prefix as text or as token_ids, one of both")
        if self.ttl is None and self.hard_ttl is None:
            raise ValueError("needs a ttl, a hard_ttl, or both")
        return self


class _File(Entry):
    others: _Rule = Field(default_factory=_Rule)
    tenants: Annotated[dict[Name, _Tenant], Field(max_length=_MOST_ENTRIES)] = Field(default_factory=dict)
    namespaces: Annotated[dict[Digest, _Namespace], Field(max_length=_MOST_ENTRIES)] = Field(
        default_factory=dict
    )
    prefixes: Annotated[list[_Prefix], Field(max_length=_MOST_ENTRIES)] = Field(default_factory=list)

    def plan(self) -> RetentionPlan:
        """Return what the file says. Raises ``ValueError`` for entries that contradict each other."""
        tenants: dict[str, TenantRule] = {}
        for name, tenant in self.tenants.items():
            if tenant.digest in tenants:
                raise ValueError(f"tenants.{name}: is the same as another tenant")
            tenants[tenant.digest] = tenant.rule()
        prefixes = tuple(self._prefix(number, prefix) for number, prefix in enumerate(self.prefixes))
        quotas = {bytes.fromhex(digest): _by_name(entry.quotas) for digest, entry in self.namespaces.items()}
        return RetentionPlan(self.others.rule(), tenants, quotas, prefixes)

    def _prefix(self, number: int, prefix: _Prefix) -> PrefixRule:
        if prefix.tenant is not None and prefix.tenant not in self.tenants:
            raise ValueError(f"prefixes.{number}.tenant: no tenant of this file is called {prefix.tenant}")
        salt = self.tenants[prefix.tenant].digest if prefix.tenant is not None else ""
        text = prefix.text or ""
        tokens = tuple(prefix.token_ids or ())
        return PrefixRule(f"prefixes.{number}", prefix.lifetime(), text, tokens, salt, prefix.lora)


def read_retention(path: Path | None) -> RetentionPlan:
    """Return what the file at ``path`` says; ``None``: no rules. Raises ``ConfigError``.

    Nothing that it holds is repeated in an error or in the log: it may hold secrets.
    """
    if path is None:
        return RetentionPlan()
    file = read_toml_file(path, "retention", _File)
    try:
        plan = file.plan()
    except ValueError as error:
        raise ConfigError("retention", f"{path}: {in_one_line(str(error))}") from None
    if any(tenant.salt for tenant in file.tenants.values()):
        warn_of_readers(path, "tenants' salts", "give salt_digest")
    return plan
