from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.sglang.settings import SGLANGS_OWN, AdapterSettings
from kvstore.errors import ConfigError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sglang.md"


def test_the_page_has_every_setting() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for field in fields(AdapterSettings):
        default = "" if field.default in {"", None} else f"`{field.default}`"
        assert f"| `{field.name}` | {default} | {field.metadata['meaning']} |" in rows


def test_what_is_sglang_s_own_is_left_out() -> None:
    given = dict.fromkeys(SGLANGS_OWN, 1) | {"store": "unix:///run/prefixd.sock"}
    assert AdapterSettings.parse(given) == AdapterSettings(store="unix:///run/prefixd.sock")


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"stor": "unix:///x"}, "stor"),
        ({"store": 1}, "store"),
        ({"mode": "sometimes"}, "mode"),
        ({"host_bytes": "1GiB"}, "host_bytes"),
        ({"disk_bytes": -1}, "disk_bytes"),
        ({"host_bytes": 0}, "host_bytes"),
        ({"verify_share": 2}, "verify_share"),
        ({"load_deadline_s": True}, "load_deadline_s"),
        ({"load_deadline_s": 0}, "load_deadline_s"),
        ({"load_deadline_s": float("inf")}, "load_deadline_s"),
        ({"lookup_deadline_s": 1e12}, "lookup_deadline_s"),
        ({"ttl_s": 1e10}, "ttl_s"),
        ({"ttl_s": 0}, "ttl_s"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        AdapterSettings.parse(given)
    assert refused.value.setting == setting
