from __future__ import annotations

from engine_adapter.sglang.settings import SGLANGS_OWN, AdapterSettings


def test_what_is_sglang_s_own_is_left_out() -> None:
    given = dict.fromkeys(SGLANGS_OWN, 1) | {"store": "unix:///run/prefixd.sock"}
    assert AdapterSettings.parse(given) == AdapterSettings(store="unix:///run/prefixd.sock")
