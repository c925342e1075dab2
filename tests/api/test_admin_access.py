"""Who may see and change what: over all routes of the administration, whichever there are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kvstore.namespace import tenant_digest
from tests.api.admin_rig import SALT, TOKENS, Rig, admin_rig, namespace_of

CANARY = "what-stands-in-the-environment"
NEEDS_NO_CHANGE = {"POST /admin/resolve", "POST /admin/explain"}
# What concerns all tenants: reading it takes a token without a tenant, changing it the role admin as well.
OF_ALL_TENANTS = {
    "GET /admin/audit", "PUT /admin/audit", "GET /admin/history", "GET /admin/log", "GET /admin/config",
    "GET /admin/shadows", "PUT /admin/mode", "POST /admin/clear",
    "POST /admin/tiers/{tier}/drain", "DELETE /admin/tiers/{tier}/drain", "PUT /admin/quotas/{tenant}",
    "PUT /admin/namespaces/{digest}/budget", "POST /admin/import",
}  # fmt: skip
NEED_A_MODEL = {
    "GET /admin/audit", "PUT /admin/audit", "GET /admin/mode", "PUT /admin/mode",
    "GET /admin/plans", "POST /admin/explain", "GET /admin/shadows",
}  # fmt: skip


class Route(NamedTuple):
    method: str
    path: str
    body: Any
    is_octets: bool

    @property
    def name(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_change(self) -> bool:
        return self.method != "GET" and self.name not in NEEDS_NO_CHANGE

    def asked(self, rig: Rig, who: str | None, **parts: str) -> Any:
        """Send a request that would be served, were ``who`` allowed to."""
        path = re.sub(r"\{(\w+)\}", lambda part: parts.get(part[1], "disk"), self.path)
        more: dict[str, Any] = {"content": b"no file"} if self.is_octets else {}
        if self.body is not None and not self.is_octets:
            more["json"] = self.body
        return rig.call(who, self.method, path, **more)


def routes(rig: Rig) -> list[Route]:
    """Return all routes of the administration, with a body that fits each."""
    described = rig.app.openapi()
    found = []
    for path, methods in described["paths"].items():
        for method, operation in methods.items() if path.startswith("/admin") else ():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            name = schema.get("$ref", "").rpartition("/")[2]
            body = described["components"]["schemas"][name]["examples"][0] if name else None
            found.append(Route(method.upper(), path, wet(body), "application/octet-stream" in content))
    return found


def wet(body: Any) -> Any:
    return {name: value for name, value in body.items() if name != "dry_run"} if body else body


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    with pytest.MonkeyPatch.context() as patch, admin_rig(tmp_path_factory.mktemp("rig")) as rig:
        patch.setenv("PREFIXD_TESTS_CANARY", CANARY)
        yield rig


def test_the_lists_here_are_about_routes_that_are_there(rig: Rig) -> None:
    names = {route.name for route in routes(rig)}
    assert len(names) > 30
    assert (NEEDS_NO_CHANGE | OF_ALL_TENANTS | NEED_A_MODEL) - names == set()


@pytest.mark.parametrize("who", [None, "no-such-token", TOKENS["operator"][:-1], TOKENS["operator"] + " "])
def test_case_20_without_a_token_or_with_a_wrong_one_every_route_is_401(rig: Rig, who: str | None) -> None:
    for route in routes(rig):
        answer = route.asked(rig, who)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), route.name
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_a_token_that_may_only_look_changes_nothing(rig: Rig) -> None:
    for route in routes(rig):
        answer = route.asked(rig, "looker", digest="0f" * 16, id="0f" * 8, key="0f" * 16, tenant="others")
        if route.is_change:
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed"), route.name
        elif route.name in NEED_A_MODEL:
            assert answer.json()["error"]["code"] == "needs_model", route.name
        else:
            assert answer.status_code in {200, 404}, route.name


def test_what_concerns_all_tenants_is_no_tenants(rig: Rig) -> None:
    for route in routes(rig):
        answer = route.asked(rig, "acme", digest="0f" * 16, id="0f" * 8, key="0f" * 16, tenant="others")
        is_refused = answer.status_code == 403
        assert is_refused == (route.name in OF_ALL_TENANTS), (route.name, answer.text)


def test_case_20_what_is_another_tenants_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    with admin_rig(tmp_path) as rig:
        keys, digest = rig.keep("acme"), namespace_of("acme").digest.hex()
        rig.keep("zeno", 1000)
        rig.ok("acme", "POST", "/admin/pins", json={"selection": {"keys": keys[:1]}, "for_s": 600.0})
        job = rig.ok("acme", "POST", "/admin/evict", json={"selection": {"filter": {"min_age_s": 1e6}}})["id"]
        before = rig.ok("acme", "GET", "/admin/blocks")
        theirs = {*keys, digest, job, tenant_digest("acme")}
        for body in (
            None,
            {"keys": keys},
            {"filter": {"namespace": digest}},
            {"filter": {"prefix": keys[0]}},
        ):
            for route in routes(rig):
                if route.name == "DELETE /admin/jobs/{id}" and body:
                    continue
                if body and isinstance(route.body, dict) and "selection" in route.body:
                    route = route._replace(body={**route.body, "selection": body})  # noqa: PLW2901  that one
                answer = route.asked(rig, "zeno", digest=digest, id=job, key=keys[0], tenant="others")
                if "{" in route.path and route.name not in OF_ALL_TENANTS:
                    assert answer.status_code == 404, (route.name, answer.text)
                told = theirs if body is None else theirs - {*keys, digest}  # which were named
                assert [one for one in told if one in answer.text.replace(route_path(answer), "")] == [], (
                    route.name, answer.text,
                )  # fmt: skip
        assert rig.ok("acme", "GET", "/admin/blocks") == before
        assert len(rig.ok("acme", "GET", "/admin/pins")["data"]) == 2


def route_path(answer: Any) -> str:
    """Return what the asker named itself, which a refusal may repeat."""
    return str(answer.request.url.path.rpartition("/")[2]) or "nothing"


def test_where_another_tenants_blocks_are_is_not_told(rig: Rig) -> None:
    keys = rig.keep("acme", 5000)
    asked = {"json": {"selection": {"keys": keys}}}
    assert [block["tiers"] for block in rig.ok("zeno", "POST", "/admin/resolve", **asked)["data"]] == [[]] * 3
    assert rig.ok("acme", "POST", "/admin/resolve", **asked)["data"][0]["tiers"] == ["host", "disk"]
    assert rig.ok("operator", "POST", "/admin/resolve", **asked)["data"][0]["tiers"] == ["host", "disk"]


def test_a_tenant_does_not_see_others_by_naming_them_in_a_filter(rig: Rig) -> None:
    keys = rig.keep("acme", 6000)
    for query in (f"tenant={tenant_digest('acme')}", f"prefix={keys[0]}", "tenant=unsalted", "tier=host"):
        listed = rig.ok("zeno", "GET", f"/admin/blocks?{query}")
        assert not {block["key"] for block in listed["data"]} & set(keys)
    assert rig.ok("acme", "GET", f"/admin/blocks?prefix={keys[0]}")["total"] == 3


def test_case_20_no_answer_holds_secrets_or_the_environment(rig: Rig) -> None:
    rig.keep("acme", 7000)
    secrets = [*TOKENS.values(), SALT, CANARY]
    for route in routes(rig):
        for who in (None, "looker", "acme", "operator"):
            answer = route.asked(rig, who, digest="0f" * 16, id="0f" * 8, key="0f" * 16, tenant="others")
            assert [secret for secret in secrets if secret in answer.text] == [], route.name
    config = {one["name"]: one for one in rig.ok("operator", "GET", "/admin/config")["data"]}
    assert (config["api_token"]["value"], config["api_token"]["is_secret"]) == ("(hidden)", True)
    assert config["redis_password"]["value"] is None
    assert config["host_bytes"]["value"] == 2**20
    log = (rig.folder / "audit.jsonl").read_text()
    assert [secret for secret in secrets if secret in log] == []


def test_case_19_a_tenants_prompt_is_no_hit_for_another_or_with_another_salt(rig: Rig) -> None:
    named = {"headers": {"X-Prefixd-Client": "engine"}}
    found = {}
    for who, salt in (("acme", ""), ("acme", "a"), ("zeno", ""), ("zeno", "a"), ("operator", "")):
        manifest = namespace_of("").with_salt(salt).manifest()
        own = rig.ok(who, "POST", "/store/namespaces", json={"manifest": manifest}, **named)
        found[who, salt] = own["value"]
    assert len(set(found.values())) == 5
    keys = rig.keep("acme", 8000)
    answers = {
        who: rig.ok(who, "POST", "/store/lookups", json={"keys": keys}, headers={"X-Prefixd-Client": "e"})
        for who in ("acme", "zeno")
    }
    assert answers["zeno"]["tiers"] == [None, None, None]
