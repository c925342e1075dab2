"""Where settings come from, and what happens to those that cannot be used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.commands.flags import flag_settings
from api.quantities import format_bytes, format_rate, parse_bytes
from api.serving_config import serving_config
from api.settings import Settings
from api.settings_page import settings_page
from api.settings_sources import check_budgets, check_redis, load_settings
from kvstore.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"


def test_defaults_need_no_configuration_at_all() -> None:
    settings = load_settings({}, {})
    assert (settings.host, settings.port, settings.host_bytes) == ("127.0.0.1", 8000, 2 * 2**30)


def test_a_flag_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "prefixd.toml"
    config.write_text('port = 1\nmax_sequences = 1\nhost_bytes = "1GiB"\n')
    environ = {"PREFIXD_PORT": "2", "PREFIXD_MAX_SEQUENCES": "2"}
    settings = load_settings({"port": "3", "host_bytes": None}, environ, config)
    assert (settings.port, settings.max_sequences, settings.host_bytes) == (3, 2, 2**30)


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "prefixd.toml").write_text("port = 1234\n")
    assert load_settings({}, {"PREFIXD_CONFIG": str(tmp_path / "prefixd.toml")}).port == 1234


def test_a_configured_file_gives_way_to_the_one_named_by_flag(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("port = 1\n")
    (tmp_path / "b.toml").write_text("port = 2\n")
    assert load_settings({}, {"PREFIXD_CONFIG": str(tmp_path / "a.toml")}, tmp_path / "b.toml").port == 2


def test_empty_variables_and_those_of_kubernetes_are_not_settings() -> None:
    environ = {
        "PREFIXD_MODEL": "",
        "PREFIXD_PORT": "tcp://10.0.0.1:8000",
        "PREFIXD_SERVICE_HOST": "10.0.0.1",
        "PREFIXD_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    assert load_settings({}, environ) == Settings()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"host_bytes": "-5"}, "host_bytes: '-5' (--host-bytes): must be greater than or equal to 0."),
        ({"disk_bytes": "99999TiB"}, "disk_bytes: '99999TiB' (--disk-bytes): must be less than or equal to"),
        ({"device_bytes": "0"}, "device_bytes: '0' (--device-bytes): must be greater than 0."),
        ({"host_bytes": "lots"}, "host_bytes: 'lots' (--host-bytes): a size is written like 2GiB"),
        ({"port": "70000"}, "port: '70000' (--port): must be less than or equal to 65535."),
        ({"port": "http"}, "port: 'http' (--port): must be a valid integer"),
        ({"max_sequences": "0"}, "max_sequences: '0' (--max-sequences): must be greater than or equal to 1."),
        ({"load_deadline_s": "nan"}, "load_deadline_s: 'nan' (--load-deadline-s): must be a finite number."),
        ({"default_ttl_s": "-1"}, "default_ttl_s: '-1' (--default-ttl-s): must be greater than 0."),
        ({"compute_dtype": "int8"}, "compute_dtype: 'int8' (--compute-dtype): must be 'auto', 'float32'"),
        (
            {"disk_write": "later"},
            "disk_write: 'later' (--disk-write): must be 'through', 'back' or 'second-use'.",
        ),
        ({"model": ""}, "model: '' (--model): must name a folder."),
        ({"host": "0.0.0.0"}, "api_token: required because 0.0.0.0 is reachable from other machines; set"),
    ],
)
def test_a_value_that_cannot_be_used_is_one_line_that_says_why(
    flags: dict[str, str | None], line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings(flags, {})
    assert str(raised.value).startswith(line)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hots_bytes = 1", "hots_bytes: no such setting (in {path}); did you mean host_bytes?"),
        ("zebra = 1", "zebra: no such setting (in {path}); see docs/settings.md"),
        ("port = [1]", "port: [1] (in {path}): must be a valid integer."),
        ("port = true", "port: true (in {path}): no setting is true or false"),
        ("port = ", "config: {path} is not valid TOML"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_with_its_name(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "prefixd.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load_settings({}, {}, path)
    assert str(raised.value).startswith(line.format(path=path))


@pytest.mark.parametrize(
    ("flags", "environ", "text"),
    [
        ({"lora": ["a=/x", "b=~/y"]}, {"PREFIXD_LORA": "c=/z"}, "lora = { d = '/w' }"),
        ({}, {"PREFIXD_LORA": "a=/x, b=~/y"}, "lora = { d = '/w' }"),
        ({}, {}, "[lora]\na = '/x'\nb = '~/y'"),
        ({}, {}, "lora = ['a=/x', 'b=~/y']"),
    ],
)
def test_adapters_are_named_in_flags_the_environment_or_a_file(
    tmp_path: Path, flags: dict[str, Any], environ: dict[str, str], text: str
) -> None:
    (tmp_path / "prefixd.toml").write_text(text)
    settings = load_settings({"model": "m", **flags}, environ, tmp_path / "prefixd.toml")
    assert settings.lora == {"a": Path("/x"), "b": Path.home() / "y"}
    assert serving_config(settings).loras == settings.lora


@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        (["a"], "an adapter is written NAME=DIR"),
        (["=/x"], "a name has 1 to 128 of"),
        (["a b=/x"], "a name has 1 to 128 of"),
        ([f"{'a' * 129}=/x"], "a name has 1 to 128 of"),
        (["a="], "must name a folder for a"),
        (["a=/x", "a=/y"], "names a twice"),
        ([f"a{number}=/x" for number in range(65)], "names more than 64 adapters"),
        (["m=/x"], "m is the name of the model itself; choose another one"),
        ({"a": 5}, "Input is not a valid path"),
        (5, "an adapter is written NAME=DIR"),
    ],
)
def test_adapters_that_cannot_be_named_so_are_refused(lora: Any, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings({"model": "m", "lora": lora}, {})
    assert raised.value.setting == "lora"
    assert reason in raised.value.reason
    assert "\n" not in str(raised.value)


def test_a_missing_file_and_a_misspelled_variable_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        load_settings({}, {}, tmp_path / "none.toml")
    with pytest.raises(
        ConfigError, match=r"no such setting \(environment variable PREFIXD_PROT\); did you mean"
    ):
        load_settings({}, {"PREFIXD_PROT": "1"})


def test_a_secret_is_never_shown() -> None:
    settings = load_settings({}, {"PREFIXD_API_TOKEN": "swordfish"})
    assert settings.api_token is not None
    assert settings.api_token.get_secret_value() == "swordfish"
    assert "swordfish" not in repr(settings) + str(settings)


@pytest.mark.parametrize("token", ["swordfish\n", " swordfish", "sword fish", "schwertfisch\u00e4", "\t"])
def test_a_token_that_no_client_could_send_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_settings({}, {"PREFIXD_API_TOKEN": token})
    line = "api_token: environment variable PREFIXD_API_TOKEN: must be visible ASCII characters alone"
    assert str(raised.value).startswith(line)
    assert "fisch" not in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["redis_username", "redis_password", "redis_ca_file"])
def test_what_is_for_a_redis_tier_is_refused_without_one(name: str) -> None:
    own, url = {f"PREFIXD_{name.upper()}": "swordfish"}, {"PREFIXD_REDIS_URL": "rediss://h"}
    with pytest.raises(ConfigError) as raised:
        check_redis(load_settings({}, own))
    assert str(raised.value) == (
        f"{name}: is for a Redis tier, and there is none; set PREFIXD_REDIS_URL, or take it out"
    )
    check_redis(load_settings({}, own | url))
    check_redis(load_settings({"redis_bytes": "0"}, own | url))


def test_the_redis_tiers_secrets_are_never_shown_and_have_no_flag() -> None:
    environ = {"PREFIXD_REDIS_URL": "redis://ann:swordfish@h", "PREFIXD_REDIS_PASSWORD": "sawfish"}
    settings = load_settings({"model": "m", "redis_username": "bob"}, environ)
    config = serving_config(settings)
    address = config.tiers[-1].address
    assert address is not None
    assert (address.username, address.password, str(address)) == ("bob", "sawfish", "redis://h:6379/0")
    told = f"{settings!r} {settings} {config!r} {config}"
    assert "fish" not in told
    assert {"redis_url", "redis_password"}.isdisjoint(flag_settings())


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        (
            {"PREFIXD_REDIS_URL": "http://ann:swordfish@h"},
            "redis_url: cannot be read; its forms are redis://",
        ),
        (
            {"PREFIXD_REDIS_URL": "redis://swordfish@h", "PREFIXD_REDIS_CA_FILE": "/none"},
            "redis_ca_file: is for a redis_url that begins with rediss://",
        ),
    ],
)
def test_a_redis_tier_that_cannot_be_is_one_line_without_its_secret(
    environ: dict[str, str], line: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        serving_config(load_settings({"model": "m"}, environ))
    assert str(raised.value).startswith(line)
    assert "swordfish" not in str(raised.value)


def test_a_redis_tier_is_there_when_a_url_is_set_and_has_bytes() -> None:
    def tiers(**flags: str) -> list[str]:
        settings = load_settings({"model": "m", **flags}, {"PREFIXD_REDIS_URL": "unix:///socket"})
        return [tier.name for tier in serving_config(settings).tiers]

    assert tiers() == ["host", "disk", "redis"]
    assert tiers(redis_bytes="0") == ["host", "disk"]
    assert [tier.name for tier in serving_config(load_settings({"model": "m"}, {})).tiers] == ["host", "disk"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_addresses_need_no_token(host: str) -> None:
    assert load_settings({"host": host}, {}).host == host


def test_more_host_memory_than_the_machine_has_is_refused() -> None:
    settings = load_settings({"host_bytes": "8GiB"}, {})
    check_budgets(settings, memory_bytes=16 * 2**30)
    with pytest.raises(ConfigError, match=r"host_bytes: 8 GiB is more than the machine's 4 GiB of memory"):
        check_budgets(settings, memory_bytes=4 * 2**30)


def test_tiers_without_a_budget_are_not_assembled(tmp_path: Path) -> None:
    config = serving_config(
        load_settings({"model": str(tmp_path), "host_bytes": "0", "disk_bytes": "1GiB"}, {})
    )
    assert [(tier.name, tier.budget_bytes) for tier in config.tiers] == [("disk", 2**30)]
    with pytest.raises(ConfigError, match="model: none is named"):
        serving_config(Settings())


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        ("2GiB", 2 * 2**30),
        ("2 gib", 2 * 2**30),
        ("500MB", 500_000_000),
        ("1.5KiB", 1536),
        ("7B", 7),
    ],
)
def test_sizes_as_people_write_them(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "2 XB", "1e9", "2GiB2", "9" * 40])
def test_other_texts_are_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="a size is written like"):
        parse_bytes(text)


def test_sizes_for_people() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, 2**31)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "2 GiB",
    ]


def test_rates_are_shown_with_three_digits() -> None:
    assert [format_rate(rate) for rate in (5e3, 2.5e7, 2.94e9)] == ["5 kB/s", "25 MB/s", "2.94 GB/s"]


def test_every_setting_is_documented() -> None:
    written = (DOCS / "settings.md").read_text("utf-8")
    assert written == settings_page(), "run: python -m api.settings_page > docs/settings.md"
