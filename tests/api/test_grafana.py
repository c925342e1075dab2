"""The Grafana dashboard against the metrics that both services have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.serving_config import sidecar_config
from api.settings import Settings
from api.store.app import create_store_app
from engine_adapter.sidecar import open_sidecar
from tests.promql import OF_A_RANGE, Selected, selections

REPOSITORY = Path(__file__).resolve().parents[2]
BOARD = json.loads((REPOSITORY / "deploy" / "grafana.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
# What is not on the board, and why.
NOT_SHOWN: dict[str, str] = {}
# Labels that Prometheus adds, or that histograms have.
COMMON_LABELS = {"instance", "job", "le"}


def queries() -> list[str]:
    return [target["expr"] for panel in PANELS for target in panel["targets"]]


def selected() -> list[Selected]:
    return [part for query in queries() for part in selections(query)]


def family(metric: str) -> str:
    return metric.removesuffix("_bucket")


def documented_labels() -> dict[str, set[str]]:
    """Return the labels of each metric that docs/api.md lists."""
    page = (REPOSITORY / "docs" / "api.md").read_text()
    rows = re.findall(r"^\| (`prefixd_[^|]+) \| ([^|]*)\|", page, re.MULTILINE)
    return {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"\w+", names)
    }


def types_at(client: TestClient) -> dict[str, str]:
    """Return the metrics that a service has, with their types."""
    found = re.findall(r"^# TYPE (\w+) (\w+)$", client.get("/metrics").text, re.MULTILINE)
    return {name: kind for name, kind in found if not name.endswith("_created")}


@pytest.fixture(scope="module")
def store_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("store")
    tiers = {"host_bytes": "8MiB", "disk_bytes": "8MiB", "disk_path": folder / "blocks"}
    settings = Settings.model_validate({**tiers, "cache_path": folder})
    sidecar = open_sidecar(sidecar_config(settings))
    with TestClient(create_store_app(sidecar, settings)) as client:
        yield client
    sidecar.close()


@pytest.fixture(scope="module")
def types(client: TestClient, store_client: TestClient) -> dict[str, str]:
    """Return the metrics of a service with a model and of a store alone, with their types."""
    return types_at(client) | types_at(store_client)


def test_every_metric_is_on_the_board_or_named_as_an_exception(types: dict[str, str]) -> None:
    shown = {family(part.metric) for part in selected()}
    metrics = types.keys() | documented_labels().keys()
    assert metrics - shown == NOT_SHOWN.keys()
    assert shown - metrics == set()


def test_counters_are_shown_as_rates_and_nothing_else_is(types: dict[str, str]) -> None:
    for part in selected():
        kind = types.get(family(part.metric))
        assert part.has_range is (part.inside in OF_A_RANGE), part
        if kind in {"counter", "histogram"}:
            assert part.inside in {"rate", "increase"}, part
        elif kind == "gauge":
            assert part.inside not in {"rate", "increase"}, part


def test_labels_are_those_that_metrics_have() -> None:
    labels_of = documented_labels()
    for part in selected():
        labels = labels_of.get(family(part.metric), set())
        assert part.labels | part.grouped_by <= labels | COMMON_LABELS, part
        assert "instance" in part.labels, part


def test_legends_name_labels_that_are_left() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            left = set.union(*(set(part.grouped_by) for part in selections(target["expr"])))
            assert named <= left, target


def test_every_panel_says_what_it_shows_and_in_which_unit() -> None:
    for panel in PANELS:
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    titles = [panel["title"] for panel in PANELS]
    assert sorted(titles) == sorted(set(titles))


def test_panels_lie_beside_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(numbers) == len(set(numbers))


def test_variables_that_queries_use_are_there() -> None:
    variables: list[dict[str, Any]] = BOARD["templating"]["list"]
    used = {name for query in queries() for name in re.findall(r"\$(\w+)", query)} - {"__rate_interval"}
    assert used | {"datasource"} == {variable["name"] for variable in variables}


@pytest.mark.parametrize(
    "query",
    [
        "sum(rate(a_total[5m])", "rate(a_total[5 m])", "sum by tier (a)", "a{tier=host}", "a b", "",
        'a{tier="x"', "histogram_quantile(2, a)", "sum()", "a +", "a ? b",
    ],
)  # fmt: skip
def test_what_is_no_query_is_noticed(query: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        selections(query)
