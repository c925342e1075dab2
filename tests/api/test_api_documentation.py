import re
from pathlib import Path

from fastapi.testclient import TestClient

from api.openai_reply import kv_body
from api.openai_schema import KvFields
from engine_adapter.engine.request import Usage

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "api.md").read_text()


def test_every_route_is_documented(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    assert set(re.findall(r"^\| `((?:GET|POST) [^`]+)`", PAGE, re.MULTILINE)) == routes


def test_every_field_of_kv_is_documented() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    assert {*KvFields.model_fields, *kv_body(Usage(0, 0, {}))} <= documented


def test_every_metric_is_documented(client: TestClient) -> None:
    families = re.findall(r"^# TYPE (\w+) ", client.get("/metrics").text, re.MULTILINE)
    shown = {name.removesuffix("_created") for name in families}
    assert {name for name in shown if f"`{name}`" not in PAGE} == set()
