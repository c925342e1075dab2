"""The retention file: what it says, and what is told of one that says nothing sensible."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

from api.quantities import parse_duration
from api.retention_file import read_retention
from api.serving_config import serving_config
from api.settings import Settings
from engine_adapter.retaining import PrefixRule, RetentionPlan
from kvstore.errors import ConfigError
from kvstore.namespace import salt_digest, tenant_digest
from kvstore.retention import MAX_LIFETIME_S, Lifetime, TenantRule

PAGE = Path(__file__).parents[2] / "docs" / "retention.md"
SALT = "a secret that nobody may read"
DIGEST = "00112233445566778899aabbccddeeff"


def read(folder: Path, text: str) -> RetentionPlan:
    file = folder / "retention.toml"
    file.write_text(text)
    file.chmod(0o600)
    return read_retention(file)


def test_the_example_of_the_page_is_read_whole(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    plan = read(tmp_path, example)
    assert plan.others == TenantRule(Lifetime(12 * 3600.0, 30 * 86_400.0), {"disk": 2 * 2**30})
    acme = salt_digest("what acme's requests send as kv.salt")
    assert plan.tenants == {
        acme: TenantRule(
            Lifetime(7 * 86_400.0, 90 * 86_400.0),
            {"host": 2**30, "disk": 20 * 2**30, "redis": 10 * 2**30},
            512 * 2**20,
        ),
        tenant_digest("globex"): TenantRule(Lifetime(2 * 86_400.0)),
        "0f1e2d3c4b5a69788796a5b4c3d2e1f0": TenantRule(Lifetime(None, 86_400.0)),
        "": TenantRule(Lifetime(3600.0)),
    }
    assert plan.namespaces == {bytes.fromhex(DIGEST): {"disk": 5 * 2**30}}
    by_text, by_tokens = plan.prefixes
    assert (by_text.text[:18], by_text.tenant) == ("<|im_start|>system", acme)
    assert by_text.lifetime == Lifetime(30 * 86_400.0)
    assert by_tokens == PrefixRule("prefixes.1", Lifetime(None, 900.0), token_ids=(7,) * 16)


def test_every_field_is_on_the_page() -> None:
    page = PAGE.read_text()
    for field in (
        "ttl",
        "hard_ttl",
        "quotas",
        "pin_bytes",
        "salt",
        "salt_digest",
        "tenant",
        "text",
        "token_ids",
        "lora",
    ):
        assert f"`{field}`" in page


def test_no_file_and_an_empty_one_have_no_rules(tmp_path: Path) -> None:
    assert read_retention(None) == read(tmp_path, "") == RetentionPlan()


def test_a_setting_names_the_file_and_tiers_have_defaults_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "retention.toml"
    file.write_text("[others]\nttl = 5\n")
    own = {"host_ttl_s": 60.0, "disk_ttl_s": None}
    config = serving_config(Settings.model_validate({"model": tmp_path, "retention": file, **own}))
    assert config.retention.others.lifetime == Lifetime(5.0)
    assert config.tier_ttls_s == {"host": 60.0, "disk": None}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30d", 2_592_000),
        ("12h", 43_200),
        ("15min", 900),
        ("1.5m", 90),
        ("90s", 90),
        ("2W", 1_209_600),
        ("7", 7),
    ],
)
def test_durations_are_written_as_people_do(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "d", "30 fortnights", "1e3", "nan", "1h30m", "9" * 40 + "d"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a duration is written like 30d"):
        parse_duration(text)


TENANT = f'[tenants.acme]\nsalt = "{SALT}"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[others", "is not valid TOML"),
        ("[others]\nttl = " + "9" * 5000, "is not valid TOML"),
        ("[otters]\nttl = 1", "otters: there is no such field"),
        ("[others]\nlife = 1", "others.life: there is no such field"),
        ("others = 1", "others: must be"),
        ("[others]\nttl = 0", "others.ttl: must be greater than 0"),
        ("[others]\nttl = -1", "others.ttl: must be greater than 0"),
        ("[others]\nttl = nan", "others.ttl: must be a finite number"),
        ("[others]\nttl = inf", "others.ttl: must be a finite number"),
        ("[others]\nttl = true", "others.ttl: must not be true or false"),
        ('[others]\nttl = "-3d"', "others.ttl: must be greater than 0"),
        ('[others]\nttl = "soon"', "others.ttl: a duration is written like 30d"),
        ('[others]\nttl = "5000w"', None),
        ('[others]\nttl = "5300w"', f"others.ttl: must be less than or equal to {MAX_LIFETIME_S}"),
        (f"[others]\nhard_ttl = {MAX_LIFETIME_S}", None),
        (f"[others]\nhard_ttl = {MAX_LIFETIME_S + 1}", "others.hard_ttl: must be less than or equal to"),
        ("[others]\npin_bytes = -1", "others.pin_bytes: must be greater than or equal to 0"),
        ('[others]\npin_bytes = "much"', "others.pin_bytes: a size is written like 2GiB"),
        ("[others.quotas]\ndisk = -1", "others.quotas.disk: must be greater than or equal to 0"),
        ("[others.quotas]\ndevice = 1", "others.quotas.device: must be 'host', 'disk' or 'redis'"),
        ("[others.quotas]\ntape = 1", "others.quotas.tape: must be 'host', 'disk' or 'redis'"),
        ("[tenants.acme]\nttl = 1", "tenants.acme: needs one of: the tenant's salt, its salt_digest"),
        (
            TENANT + f'salt_digest = "{DIGEST}"',
            "tenants.acme: needs one of: the tenant's salt, its salt_digest",
        ),
        ('[tenants.acme]\nsalt_digest = "abc"', "tenants.acme.salt_digest: must be a digest: 32 digits"),
        ('[tenants."a\\n\\u001b[2J"]\nttl = 1', "tenants.a??[2J: needs one of"),
        (TENANT + f'[tenants.b]\nsalt = "{SALT}"', "tenants.b: is the same as another tenant"),
        ("[tenants.acme]\nsalt = 5", "tenants.acme.salt: must be"),
        ("[namespaces.xyz]\nquotas = {}", "namespaces.xyz: must be a digest: 32 digits"),
        (f"[namespaces.{DIGEST}]\nttl = 1", f"namespaces.{DIGEST}.quotas: must be given"),
        ('[[prefixes]]\ntext = "a"', "prefixes.0: needs a ttl, a hard_ttl, or both"),
        ("[[prefixes]]\nttl = 1", "prefixes.0: needs the prefix as text or as token_ids"),
        ('[[prefixes]]\ntext = "a"\ntoken_ids = [1]\nttl = 1', "prefixes.0: needs the prefix as text or as"),
        ("[[prefixes]]\ntoken_ids = []\nttl = 1", "prefixes.0.token_ids: must not be empty"),
        ("[[prefixes]]\ntoken_ids = [-1]\nttl = 1", "prefixes.0.token_ids.0: must be greater than or equal"),
        ('[[prefixes]]\ntext = "a"\nttl = 1\ntenant = "b"', "prefixes.0.tenant: no tenant of this file"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, told: str | None) -> None:
    if told is None:
        read(tmp_path, text)
        return
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert str(caught.value).startswith("retention: ")
    assert told in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"retention: cannot read .*none.toml: No such file"):
        read_retention(tmp_path / "none.toml")
    (tmp_path / "latin").write_bytes(b'a = "\xe4"')
    with pytest.raises(ConfigError, match="it is not UTF-8"):
        read_retention(tmp_path / "latin")


@pytest.mark.parametrize(
    "rest",
    ["ttl = 0", "life = 1", "salt_digest = 'abc'", "ttl = ", f'[tenants.b]\nsalt = "{SALT}"', "quotas = 1"],
)
def test_a_salt_is_never_repeated(tmp_path: Path, rest: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(ConfigError) as caught:
        read(tmp_path, TENANT + rest)
    assert SALT not in f"{caught.value}{caught.value!r}{caplog.text}{caught.value.__context__}"


def test_others_may_not_read_a_file_with_salts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "retention.toml"
    for text, mode, is_told in ((TENANT, 0o644, True), (TENANT, 0o600, False), ("[others]", 0o644, False)):
        caplog.clear()
        file.write_text(text)
        file.chmod(mode)
        plan = read_retention(file)
        assert ("chmod 600" in caplog.text) == is_told
        assert SALT not in f"{caplog.text}{plan!r}"
