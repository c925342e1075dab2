"""Settings of the adapters, which foreign engines hand over: refused by name, and each on its page."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.lmcache.settings import AdapterSettings as LmcacheSettings
from engine_adapter.sglang.settings import AdapterSettings as SglangSettings
from engine_adapter.vllm.settings import AdapterSettings as VllmSettings
from kvstore.errors import ConfigError

DOCS = Path(__file__).parents[2] / "docs"
KINDS: dict[str, Any] = {"lmcache": LmcacheSettings, "sglang": SglangSettings, "vllm": VllmSettings}
each_engine = pytest.mark.parametrize("engine", KINDS)


@each_engine
def test_the_page_lists_every_setting(engine: str) -> None:
    told = (
        (DOCS / f"{engine}.md").read_text(encoding="utf-8").partition("## Settings")[2].partition("\n## ")[0]
    )
    rows = [line for line in told.splitlines() if line.startswith("| `")]
    assert rows == [row(each) for each in fields(KINDS[engine])]


def row(each: Any) -> str:
    default = "none" if each.default in {"", None} else f"`{each.default}`"
    return f"| `{each.name}` | {default} | {each.metadata['meaning']} |"


@each_engine
@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"hots_bytes": 1}, "hots_bytes"), ({"store": 7}, "store"), ({"mode": "fast"}, "mode"),
        ({"host_bytes": "16GiB"}, "host_bytes"), ({"host_bytes": -1}, "host_bytes"),
        ({"host_bytes": True}, "host_bytes"), ({"host_bytes": 1e9}, "host_bytes"),
        ({"host_bytes": None}, "host_bytes"), ({"host_bytes": 0}, "host_bytes"),
        ({"load_deadline_s": "1"}, "load_deadline_s"), ({"load_deadline_s": 1e10}, "load_deadline_s"),
        ({"load_deadline_s": float("nan")}, "load_deadline_s"), ({"load_deadline_s": 0}, "load_deadline_s"),
        ({"verify_share": 2}, "verify_share"),
        ({"ttl_s": 0}, "ttl_s"), ({"ttl_s": "1d"}, "ttl_s"), ({"ttl_s": 1e12}, "ttl_s"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(engine: str, given: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        KINDS[engine].parse(given)
    assert refused.value.setting == setting


@pytest.mark.parametrize(
    ("given", "setting"),
    [
        ({"prefill_tokens_per_s": float("inf")}, "prefill_tokens_per_s"),
        ({"lookup_deadline_s": 1e12}, "lookup_deadline_s"),
        ({"chunk_tokens": 1 << 21}, "chunk_tokens"),
    ],
)
def test_what_cannot_be_in_lmcache_is_refused(given: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        LmcacheSettings.parse(given)
    assert refused.value.setting == setting


def test_a_refusal_says_what_is_wanted_and_what_came() -> None:
    said = {"host_bytes": "16GiB", "verify_share": 2, "mode": "fast", "ttl_s": "1d"}
    told = []
    for name, value in said.items():
        with pytest.raises(ConfigError) as refused:
            VllmSettings.parse({name: value})
        told.append(refused.value.reason)
    assert told == [
        "must be a whole number of at least 0, not '16GiB'",
        "must be a number from 0 to 1, not 2",
        "must be one of off, observe, verify, serve, not 'fast'",
        "must be a number from 0.001 to 3153600000, or unset, not '1d'",
    ]


def test_no_refusal_repeats_a_token() -> None:
    with pytest.raises(ConfigError) as refused:
        VllmSettings.parse({"token": 1234})
    assert refused.value.reason == "must be a text"


def test_threads_and_chunks_are_at_least_one() -> None:
    for name in ("num_workers", "chunk_tokens", "staging_bytes"):
        with pytest.raises(ConfigError, match=name):
            LmcacheSettings.parse({name: 0})


def test_a_store_elsewhere_needs_no_room_here() -> None:
    for kind in KINDS.values():
        assert kind.parse({"store": "unix:///run/prefixd.sock", "host_bytes": 0}).host_bytes == 0
