"""A store with several tenants and its administration over HTTP, for the tests of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from api.serving_config import sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.sidecar import open_sidecar
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from tests.eventually import eventually

SALT = "zeno's very own salt"
TOKENS = {
    "operator": "operators-own-token",
    "looker": "may-only-look",
    "acme": "acmes-admin-token",
    "acme-looker": "acmes-looking-token",
    "zeno": "zenos-admin-token",
}
FILE = """
[tokens.looker]
token = "may-only-look"
role = "read"
[tokens.acme]
token = "acmes-admin-token"
role = "admin"
tenant = "acme"
[tokens.acme-looker]
token = "acmes-looking-token"
role = "read"
tenant = "acme"
[tokens.zeno]
token = "zenos-admin-token"
role = "admin"
tenant = "zeno"
"""
RULES = f"""
[others]
pin_bytes = "1MiB"
[tenants.zeno]
salt = "{SALT}"
pin_bytes = "1MiB"
"""
BASE = Namespace("weights", "{}", "float32", "float32", block_tokens=16, label="a model")
BLOCK_BYTES = 4096


@dataclass
class Rig:
    """``folder`` holds all its files."""

    app: FastAPI
    client: TestClient
    store: TieredStore
    folder: Path

    def call(self, who: str | None, method: str, path: str, **more: Any) -> Any:
        """Send a request with the token of ``who``; a token that is none, for another name."""
        sent = {} if who is None else {"Authorization": f"Bearer {TOKENS.get(who, who)}"}
        headers = {**sent, **more.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **more)

    def ok(self, who: str, method: str, path: str, **more: Any) -> Any:
        """Do so, and return what a success says."""
        answer = self.call(who, method, path, **more)
        assert answer.is_success, answer.text
        return answer.json()

    def done(self, who: str, method: str, path: str, **more: Any) -> Any:
        """Begin a job, wait for its end, and return its result."""
        ended = self.ended(who, self.ok(who, method, path, **more)["id"])
        assert ended["state"] == "done", ended
        return ended["result"]

    def ended(self, who: str, job: str) -> Any:
        """Wait for the end of a job, and return it."""
        eventually(lambda: self.ok(who, "GET", f"/admin/jobs/{job}")["state"] != "running")
        return self.ok(who, "GET", f"/admin/jobs/{job}")

    def keep(self, tenant: str, first_token: int = 0, num_blocks: int = 3) -> list[str]:
        """Store a prefix of a tenant's, unless it is there; returns its keys."""
        namespace = namespace_of(tenant)
        keys = chain_keys(namespace.digest, range(first_token, first_token + 16 * num_blocks), 16)
        for key, parent in zip(keys, [b"", *keys], strict=False):
            self.store.put(namespace, key, parent, memoryview(key * (BLOCK_BYTES // 16)))
        assert self.store.flush(10.0)
        return [key.hex() for key in keys]


def namespace_of(tenant: str) -> Namespace:
    """Return a tenant's namespace; empty: nobody's in particular."""
    return BASE.with_salt("", tenant)


@contextmanager
def admin_rig(folder: Path, **more: object) -> Iterator[Rig]:
    """Yield a store that is empty, with its files in ``folder``."""
    tokens, rules = folder / "tokens.toml", folder / "rules.toml"
    tokens.write_text(FILE)
    rules.write_text(RULES)
    for file in (tokens, rules):
        file.chmod(0o600)
    settings = Settings.model_validate({
        "host_bytes": "1MiB", "disk_bytes": "4MiB", "disk_path": folder / "blocks", "cache_path": folder,
        "port": 0, "api_token": TOKENS["operator"], "tokens": tokens, "retention": rules,
        "audit_log": folder / "audit.jsonl", **more,
    })  # fmt: skip
    sidecar = open_sidecar(sidecar_config(settings))
    try:
        app = create_store_app(sidecar, settings)
        with TestClient(app) as client:
            yield Rig(app, client, sidecar.store, folder)
    finally:
        sidecar.close()


def by_keys(keys: list[str], **more: Any) -> dict[str, Any]:
    """Return a request that names blocks, with more fields beside them."""
    return {"json": {"selection": {"keys": keys}, **more}}


def tiers_of(rig: Rig, keys: list[str], who: str = "operator") -> list[list[str]]:
    """Return the tiers that have each block."""
    return [block["tiers"] for block in rig.ok(who, "POST", "/admin/resolve", **by_keys(keys))["data"]]


def refused(answer: Any, status: int, code: str | None, param: str | None = None) -> str:
    """Check that an answer refuses so; returns its message."""
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param), answer.text
    return str(error["message"])
