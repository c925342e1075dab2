import re
from pathlib import Path

from fastapi.testclient import TestClient

from api.admin.insight_fields import ExplainFields
from api.http_errors import ERRORS, STATUSES
from api.kv_reply import miss_body, plan_body
from api.openai_reply import kv_body
from api.openai_schema import ChatFields, CompletionFields, KvFields
from engine_adapter.engine.events import Planned, Usage
from engine_adapter.engine.misses import Miss
from engine_adapter.engine.request import Mode
from kvstore.absences import Cause

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "api.md").read_text()
ADMIN_PAGE = (DOCS / "admin.md").read_text()


def documented_fields() -> set[str]:
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", PAGE, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"\w+", cell)}


def test_every_route_is_documented(client: TestClient) -> None:
    described = client.get("/openapi.json").json()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    told = re.findall(r"^\| `((?:GET|POST|PUT|DELETE) [^`]+)`", PAGE + ADMIN_PAGE, re.MULTILINE)
    assert set(told) == routes


def test_every_error_code_is_documented() -> None:
    codes = {code for *_, code in ERRORS if code} | {code for _, code, _ in STATUSES.values() if code}
    assert {code for code in codes if f"`{code}`" not in ADMIN_PAGE} == set()


def test_every_field_of_a_request_is_documented() -> None:
    fields = {*CompletionFields.model_fields, *ChatFields.model_fields}
    assert {name for name in fields if f"`{name}`" not in PAGE} == set()


def test_every_field_of_kv_is_documented() -> None:
    assert {*KvFields.model_fields, *kv_body(Usage(0, 0, {}))} <= documented_fields()


def test_every_field_of_plans_and_misses_is_documented() -> None:
    planned = Planned("measured", Mode.SERVE, True, "both", "", {}, 0.1, 0.2, 0.3, 1)
    assert {*plan_body(planned), *miss_body(Miss(0, 0, Cause.EVICTED))} <= documented_fields()
    assert {cause.value for cause in Cause if f"`{cause.value}`" not in PAGE} == set()


def test_every_field_of_plans_and_explanations_is_documented(client: TestClient) -> None:
    body = {"model": "tiny-llama", "prompt": "the cat", "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200
    account = client.get("/admin/plans").json()["data"][0]
    explained = client.post("/admin/explain", json={"prompt": "the cat"}).json()
    assert {*account, *explained} <= documented_fields()
    assert {name for name in ExplainFields.model_fields if f"`{name}`" not in PAGE} == set()


def test_every_metric_is_documented(client: TestClient) -> None:
    families = re.findall(r"^# TYPE (\w+) ", client.get("/metrics").text, re.MULTILINE)
    shown = {name.removesuffix("_created") for name in families}
    assert {name for name in shown if f"`{name}`" not in PAGE} == set()
