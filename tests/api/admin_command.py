"""``prefixd admin`` against a real server on a free port, for the tests of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from api.cli import build_cli
from api.serving_config import sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.sidecar import open_sidecar
from kvstore.keys import chain_keys
from kvstore.namespace import Namespace
from kvstore.store import TieredStore
from tests.api.live import live

TOKEN = "operators-own-token"
TOKENS_FILE = '[tokens.acme]\ntoken = "acmes-admin-token"\nrole = "admin"\ntenant = "acme"\n'
OLD = Namespace("0" * 64, "{}", "float32", "float32", block_tokens=16, label="old-model")
NEW = Namespace("1" * 64, "{}", "float32", "float32", block_tokens=16, label="new-model")
BLOCK_BYTES = 4096


@dataclass
class Commanded:
    """A store alone at ``url``, and the command line that sees to it."""

    url: str
    store: TieredStore

    def run(self, *arguments: str, **environ: str | None) -> Result:
        """Run ``prefixd admin`` with the operator's token."""
        return admin(*arguments, **{"PREFIXD_URL": self.url, "PREFIXD_TOKEN": TOKEN, **environ})

    def shown(self, *arguments: str) -> str:
        """Return what it prints for people; it must end well."""
        result = self.run(*arguments)
        assert result.exit_code == 0, result.output
        return result.stdout

    def answered(self, *arguments: str) -> Any:
        """Return what it prints as JSON; it must end well."""
        return json.loads(self.shown(*arguments, "--json"))

    def keep(self, namespace: Namespace, first_token: int = 0, num_blocks: int = 4) -> list[str]:
        """Store a prefix; returns its keys."""
        keys = chain_keys(namespace.digest, range(first_token, first_token + 16 * num_blocks), 16)
        for key, parent in zip(keys, [b"", *keys], strict=False):
            assert self.store.put(namespace, key, parent, memoryview(key * (BLOCK_BYTES // 16)))
        assert self.store.flush(10.0)
        return [key.hex() for key in keys]

    def tiers_of(self, keys: list[str]) -> list[list[str]]:
        """Return where blocks are."""
        return [block["tiers"] for block in self.answered("resolve", *keys)["data"]]


def admin(*arguments: str, **environ: str | None) -> Result:
    """Run ``prefixd admin`` in an environment of its own."""
    return admin_told("", *arguments, **environ)


def admin_told(stdin: str, *arguments: str, **environ: str | None) -> Result:
    """Do so, with something on stdin."""
    plain = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb", "PREFIXD_API_TOKEN": None, **environ}
    return CliRunner().invoke(build_cli(), ["admin", *arguments], env=plain, input=stdin)


@contextmanager
def commanded(folder: Path, **more: object) -> Iterator[Commanded]:
    """Yield an empty store with its files in ``folder``."""
    tokens = folder / "tokens.toml"
    tokens.write_text(TOKENS_FILE)
    tokens.chmod(0o600)
    settings = Settings.model_validate({
        "host_bytes": "1MiB", "disk_bytes": "4MiB", "disk_path": folder / "blocks", "cache_path": folder,
        "port": 0, "api_token": TOKEN, "tokens": tokens, **more,
    })  # fmt: skip
    sidecar = open_sidecar(sidecar_config(settings))
    try:
        with live(create_store_app(sidecar, settings)) as url:
            yield Commanded(url, sidecar.store)
    finally:
        sidecar.close()


def one_line(result: Result, code: int) -> str:
    """Return the one line on stderr of a command that failed."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("prefixd: ")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr.removeprefix("prefixd: ").strip()
