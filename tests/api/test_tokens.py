from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.service import create_app
from api.serving_config import serving_config
from api.settings import Settings
from api.tokens import authenticate_by
from engine_adapter.assemble import assemble
from kvstore.errors import AccessError, ConfigError
from kvstore.remote.tenancy import Role, Tenant

FILE = f"""
[tokens.acme-engine]
token = "acme's-token"
role = "data"
tenant = "acme"

[tokens.zeno-engine]
token_sha256 = "{sha256(b"zeno's-token").hexdigest()}"
tenant = "zeno"

[tokens.grafana]
token = "only-looks"
role = "read"

[tokens.acme-admin]
token = "acme-admin"
role = "admin"
tenant = "acme"
"""
PROMPT = "The same long prompt for everybody, long enough for some whole blocks of tokens."


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """Return a file of tokens that only we can read."""
    path = tmp_path / "tokens.toml"
    path.write_text(FILE)
    path.chmod(0o600)
    return path


def test_each_token_has_its_role_and_tenant(token_file: Path) -> None:
    known = authenticate_by(Settings(tokens=token_file, api_token="operator's"))  # type: ignore[arg-type]  # read
    assert known("acme's-token") == Tenant("acme", Role.DATA, "acme-engine")
    assert known("zeno's-token") == Tenant("zeno", Role.DATA, "zeno-engine")
    assert known("only-looks") == Tenant("", Role.READ, "grafana")
    assert known("operator's") == Tenant("", Role.ADMIN, "api_token")
    for wrong in (
        None,
        "",
        "acme's-toke",
        "acme's-token ",
        "ACME'S-TOKEN",
        sha256(b"zeno's-token").hexdigest(),
    ):
        with pytest.raises(AccessError, match="missing or wrong"):
            known(wrong)


def test_without_any_token_everybody_is_the_operator() -> None:
    assert authenticate_by(Settings())(None) == Tenant("", Role.ADMIN)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "tokens: must be given"),
        ("[tokens]", "tokens: must not be empty|must have at least 1"),
        ("[tokens.a]", r"tokens\.a: needs the token or its token_sha256"),
        ('[tokens.a]\ntoken = "x"\ntoken_sha256 = "y"', r"tokens\.a\.token_sha256: must match|String should"),
        ('[tokens.a]\ntoken = "has space"', r"tokens\.a\.token: must be visible ASCII"),
        ('[tokens.a]\ntoken = "x"\nrole = "root"', r"tokens\.a\.role: must be 'read', 'data' or 'admin'"),
        ('[tokens.a]\ntoken = "x"\ntenant = ""', r"tokens\.a\.tenant: must not be empty"),
        ('[tokens.a]\ntoken = "x"\nowner = "me"', r"tokens\.a\.owner: there is no such field"),
        ('[tokens.a]\ntoken = "x"\n[tokens.b]\ntoken = "x"', r"tokens\.b: is the same as a"),
        ('[tokens.a]\ntoken = "the-operator"', "has the server's own api_token"),
        ('[tokens.api_token]\ntoken = "x"\ntenant = "a"', r"tokens\.api_token: is what the log calls"),
        ("tokens = 1", "tokens: must be"),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as refused:
        authenticate_by(Settings(tokens=path, api_token="the-operator"))  # type: ignore[arg-type]  # read
    assert "has space" not in str(refused.value)
    assert "the-operator" not in str(refused.value)


def test_a_file_that_others_can_read_is_warned_of(token_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    authenticate_by(Settings(tokens=token_file))
    assert not caplog.records
    token_file.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        authenticate_by(Settings(tokens=token_file))
    assert "others can read it" in caplog.text
    assert "acme's-token" not in caplog.text


@pytest.fixture(scope="module")
def served(
    make_settings: Callable[..., Settings], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """Yield a server with a model, several tenants and an operator."""
    path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    path.write_text(FILE)
    settings = make_settings(tokens=path, api_token="operator's")
    with closing(assemble(serving_config(settings))) as serving:
        yield TestClient(create_app(serving, settings))


def computed(served: TestClient, token: str, salt: str | None = None) -> int:
    """Return how many prompt tokens were computed to answer."""
    body = {"model": "tiny-llama", "prompt": PROMPT, "max_tokens": 1, "temperature": 0, "cache_salt": salt}
    answer = served.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["kv"]["tokens_by_source"]["computed"])


def test_tenants_share_nothing_whatever_salts_they_send(served: TestClient) -> None:
    whole = computed(served, "acme's-token")
    assert whole > 64
    assert computed(served, "acme's-token") < 16
    assert computed(served, "acme-admin") < 16, "another token of the same tenant"
    assert computed(served, "zeno's-token") == whole
    assert computed(served, "operator's") == whole
    assert computed(served, "acme's-token", salt="s") == whole
    assert computed(served, "acme's-token", salt="s") < 16
    assert computed(served, "zeno's-token", salt="s") == whole


@pytest.mark.parametrize(
    ("token", "route", "status"),
    [
        ("only-looks", "POST /v1/completions", 403),
        ("only-looks", "GET /v1/models", 200),
        ("only-looks", "GET /metrics", 200),
        ("acme-admin", "GET /metrics", 403),
        ("nobody's", "GET /v1/models", 401),
        ("nobody's", "GET /health", 200),
    ],
)
def test_roles_bound_what_may_be_done(served: TestClient, token: str, route: str, status: int) -> None:
    method, path = route.split()
    body = {"model": "tiny-llama", "prompt": PROMPT} if method == "POST" else None
    answer = served.request(method, path, json=body, headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == status, answer.text
