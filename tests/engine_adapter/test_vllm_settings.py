from __future__ import annotations

from pathlib import Path

from engine_adapter.vllm.counts import NAMES
from engine_adapter.vllm.settings import AdapterSettings

PAGE = Path(__file__).parents[2] / "docs" / "vllm.md"


def test_defaults_need_nothing() -> None:
    settings = AdapterSettings.parse({})
    assert (settings.mode, settings.is_shared) == ("serve", False)


def test_an_address_makes_the_store_another_process() -> None:
    assert AdapterSettings.parse({"store": "unix:///run/prefixd.sock", "host_bytes": 0}).is_shared


def test_every_count_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name, meaning in NAMES.items():
        assert f"| `vllm:prefixd_{name}_total` | {meaning} |" in page
