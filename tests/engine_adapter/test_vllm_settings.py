from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.vllm.counts import NAMES
from engine_adapter.vllm.settings import AdapterSettings
from kvstore.errors import ConfigError

NAN = float("nan")
PAGE = Path(__file__).parents[2] / "docs" / "vllm.md"


def test_defaults_need_nothing() -> None:
    settings = AdapterSettings.parse({})
    assert (settings.mode, settings.is_shared) == ("serve", False)


def test_an_address_makes_the_store_another_process() -> None:
    assert AdapterSettings.parse({"store": "unix:///run/prefixd.sock", "host_bytes": 0}).is_shared


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"hots_bytes": 1}, "hots_bytes"), ({"mode": "fast"}, "mode"), ({"loading": "soon"}, "loading"),
        ({"host_bytes": -1}, "host_bytes"), ({"host_bytes": "1GiB"}, "host_bytes"),
        ({"host_bytes": True}, "host_bytes"), ({"store": 7}, "store"), ({"host_bytes": 0}, "host_bytes"),
        ({"load_deadline_s": "1"}, "load_deadline_s"), ({"verify_share": 2}, "verify_share"),
        ({"host_bytes": 1e9}, "host_bytes"), ({"disk_bytes": NAN}, "disk_bytes"),
        ({"host_bytes": 10**30}, "host_bytes"), ({"load_deadline_s": 0}, "load_deadline_s"),
        ({"load_deadline_s": NAN}, "load_deadline_s"), ({"load_deadline_s": float("inf")}, "load_deadline_s"),
        ({"verify_share": NAN}, "verify_share"), ({"ttl_s": NAN}, "ttl_s"), ({"ttl_s": 0}, "ttl_s"),
        ({"ttl_s": "1d"}, "ttl_s"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AdapterSettings.parse(given)
    assert refused.value.setting == named


def test_every_setting_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for setting in fields(AdapterSettings):
        default = f"`{setting.default}`" if setting.default not in {"", None} else "none"
        assert f"| `{setting.name}` | {default} | {setting.metadata['meaning']} |" in page


def test_every_count_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, meaning in NAMES.items():
        assert f"| `vllm:prefixd_{name}_total` | {meaning} |" in page
