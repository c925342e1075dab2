from __future__ import annotations

from pathlib import Path

import pytest

from backends.redis_address import RedisAddress
from kvstore.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://cache.example", "redis://cache.example:6379/0"),
        ("redis://cache.example:7000/2", "redis://cache.example:7000/2"),
        ("redis://[::1]:7000", "redis://[::1]:7000/0"),
        ("rediss://cache.example", "rediss://cache.example:6379/0"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock?db=0"),
        ("unix:///run/valkey.sock?db=4", "unix:///run/valkey.sock?db=4"),
    ],
)
def test_a_url_names_one_server_and_one_database(url: str, shown: str) -> None:
    assert str(RedisAddress.parse(url)) == shown


@pytest.mark.parametrize(
    "url",
    [
        "", "cache.example:6379", "http://cache.example", "redis://", "redis://h:port", "redis://h:70000",
        "redis://h/two", "redis://h/-1", "redis://h?db=1", "redis://h#1", "unix://", "unix://h/path",
        "unix:///path?db=x", "unix:///path?password=swordfish", "redis://[::1",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_read_is_one_line_that_names_the_forms(url: str) -> None:
    with pytest.raises(ConfigError, match=r"^redis_url: cannot be read; its forms are redis://") as told:
        RedisAddress.parse(url)
    assert "swordfish" not in str(told.value)


def test_user_and_password_come_from_settings_or_the_url_and_the_settings_win() -> None:
    url = "redis://ann:p%40ss@cache.example"
    from_url = RedisAddress.parse(url)
    assert (from_url.username, from_url.password) == ("ann", "p@ss")
    both = RedisAddress.parse(url, username="bob", password="swordfish")
    assert (both.username, both.password) == ("bob", "swordfish")


def test_neither_user_nor_password_are_ever_shown() -> None:
    address = RedisAddress.parse("redis://ann:swordfish@cache.example/1")
    assert "swordfish" not in f"{address} {address!r}"
    assert "ann" not in f"{address} {address!r}"
    with pytest.raises(ConfigError) as told:
        RedisAddress.parse("redis://ann:swordfish@cache.example:port")
    assert "swordfish" not in str(told.value)
    assert told.value.__cause__ is None


def test_files_for_tls_must_be_there_and_belong_to_tls(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    with pytest.raises(ConfigError, match=r"^redis_ca_file: there is no file "):
        RedisAddress.parse("rediss://h", ca_file=file)
    file.touch()
    assert RedisAddress.parse("rediss://h", ca_file=file).ca_file == file
    with pytest.raises(ConfigError, match=r"^redis_ca_file: is for a redis_url that begins with rediss://"):
        RedisAddress.parse("redis://h", ca_file=file)
    with pytest.raises(ConfigError, match=r"^redis_key_file: belongs to a redis_cert_file"):
        RedisAddress.parse("rediss://h", key_file=file)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_timeout_is_a_positive_number(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match=r"^redis_timeout_s: must be positive"):
        RedisAddress.parse("redis://h", timeout_s=timeout_s)
