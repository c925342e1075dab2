"""The dashboard's page as it is sent, without a browser."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.ui.routes import UI_PATH
from tests.api.admin_rig import admin_rig


@pytest.fixture(scope="module")
def page(client: TestClient) -> str:
    return client.get(UI_PATH).text


def test_it_is_one_file_that_asks_no_other_host(page: str) -> None:
    addresses = set(re.findall(r"\b(?:https?|wss?)://[^\s\"'<)]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, which nobody asks for
    assert re.findall(r"""(?:src|href)="([^"]*)\"""", page) == ["data:,", "#main", "openapi.json"]
    assert "@import" not in page
    assert "url(" not in page


def test_nothing_in_it_is_made_from_text_as_code(page: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|setTimeout\(['\"]"
    assert re.findall(forbidden, page) == []
    assert re.findall(r"\son\w+=|javascript:|style=\"", page) == []


def test_its_policy_allows_its_own_script_and_style_alone(client: TestClient, page: str) -> None:
    answer = client.get(UI_PATH)
    policy = dict(rule.split(" ", 1) for rule in answer.headers["content-security-policy"].split("; "))
    for tag in ("script", "style"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        assert policy[f"{tag}-src"] == f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_store_sends_the_same_also_to_whoever_has_no_token(page: str, tmp_path: Path) -> None:
    with admin_rig(tmp_path) as rig:
        assert rig.call(None, "GET", UI_PATH).text == page
        assert rig.call(None, "GET", "/admin/overview").status_code == 401


def test_it_only_reads(page: str) -> None:
    assert re.findall(r"method:\s*[\"']", page) == []
    assert set(re.findall(r"[`\"](admin/\w+)", page)) == {
        "admin/overview", "admin/history", "admin/plans", "admin/namespaces", "admin/prefixes",
        "admin/shadows", "admin/audit",
    }  # fmt: skip
