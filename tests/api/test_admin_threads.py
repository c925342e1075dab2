"""Nothing of the administration waits for the store on the event loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

from kvstore.admin.administration import Administration
from kvstore.store import TieredStore
from tests.api.admin_rig import admin_rig, namespace_of
from tests.api.test_admin_access import routes

LOOKED_AT = {"tier_names", "asks_media", "now_s", "config", "num_holds", "retention"}


def watched(kind: type, name: str, heard: list[tuple[str, str]]) -> Callable[..., Any]:
    plain = getattr(kind, name)

    def call(*arguments: Any, **named: Any) -> Any:
        heard.append((name, current_thread().name))
        return plain(*arguments, **named)

    return call


def test_all_calls_of_the_store_are_on_threads_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with admin_rig(tmp_path) as rig:
        key, heard = rig.keep("")[0], list[tuple[str, str]]()
        for kind in (TieredStore, Administration):
            for name, _ in inspect.getmembers(kind, inspect.isfunction):
                if not name.startswith("_") and name not in LOOKED_AT:
                    monkeypatch.setattr(kind, name, watched(kind, name, heard))
        digest = namespace_of("").digest.hex()
        for route in routes(rig):
            if isinstance(route.body, dict) and "selection" in route.body:
                route = route._replace(body={**route.body, "selection": {"keys": [key]}})  # noqa: PLW2901  that one
            route.asked(rig, "operator", digest=digest, id="0f" * 8, key=key, tenant="others")
            for job in rig.ok("operator", "GET", "/admin/jobs")["data"]:
                rig.ended("operator", job["id"])
    monkeypatch.undo()
    assert {"blocks", "block", "prefixes", "namespaces", "evict", "move", "statistics"} <= {
        n for n, _ in heard
    }
    threads = ("admin", "job", "sampler", "MainThread")
    assert {thread for _, thread in heard if not thread.startswith(threads)} == set()
    assert "MainThread" not in {thread for name, thread in heard if name not in {"close", "health"}}
