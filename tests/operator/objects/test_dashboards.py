"""The Grafana dashboards: well-formed, about series that the processes export, and no panel empty under load."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import dashboards
import pytest
from dashboard_panels import Dashboard
from dashboards import DASHBOARDS

from baton_testing.kube.charts import PINNED, rendered
from baton_testing.monitoring.promtool import run_promtool
from baton_testing.monitoring.series import families, problems, recorded

Json = dict[str, Any]
UNITS = {"percentunit", "s", "short", "ops", "reqps", "Bps", "bytes", "tok/s"}
FILLED = {"namespace": "default", "deployment": "chat", "__rate_interval": "5m", "ttft_target": "0.5",
          "tpot_target": "0.05", "worker_price": "2", "prompt_price": "0.5", "token_price": "1.5"}  # fmt: skip
every_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.name)


def read(dashboard: Dashboard) -> Json:
    board: Json = json.loads((dashboards.OUT / f"{dashboard.name}.json").read_text(encoding="utf-8"))
    return board


def filled(expression: str) -> str:
    """A query as Grafana sends it."""
    return re.sub(r"\$(\w+)", lambda match: FILLED[match[1]], expression)


def queries(board: Json) -> list[str]:
    return [filled(target["expr"]) for panel in board["panels"] for target in panel["targets"]]


def test_the_files_are_those_of_the_table() -> None:
    assert dashboards.main(["--check"]) == 0


@every_dashboard
def test_every_panel_asks_a_question_and_explains_its_answer(dashboard: Dashboard) -> None:
    board = read(dashboard)
    assert board["schemaVersion"] == dashboards.SCHEMA_VERSION
    assert board["uid"] == f"baton-{dashboard.name}"
    for panel in board["panels"]:
        assert panel["title"].endswith("?")
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
    for key in ("id", "title"):
        assert len({panel[key] for panel in board["panels"]}) == len(board["panels"])


@every_dashboard
def test_panels_fit_the_grid_and_do_not_overlap(dashboard: Dashboard) -> None:
    places = [panel["gridPos"] for panel in read(dashboard)["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= dashboards.COLUMNS for place in places)
    for one, other in combinations(places, 2):
        is_apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert is_apart, (one, other)


@every_dashboard
def test_variables_are_declared_and_used(dashboard: Dashboard) -> None:
    board = read(dashboard)
    declared = [variable["name"] for variable in board["templating"]["list"]]
    assert declared[:3] == ["datasource", "namespace", "deployment"]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps([board["panels"], board["templating"]])))
    assert used - {"__rate_interval", "__all"} == set(declared)


@every_dashboard
def test_queries_are_about_series_and_labels_that_processes_export(dashboard: Dashboard) -> None:
    names = families()
    board = read(dashboard)
    for expression in queries(board):
        assert problems(expression, names) == [], expression
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            assert problems(filled(variable["query"]["query"]), names) == []
            assert re.search(r", (namespace|deployment|le)\)$", variable["query"]["query"])
    for panel in board["panels"]:
        for target in panel["targets"]:
            known = {label for name in re.findall(r"\b(?:baton|process)_\w+", target["expr"]) for label in names[name]}
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= known


def not_over_replicas(query: str) -> list[str]:
    """The gateway's series in a query that are read one Pod at a time."""
    over_all = r"(?:sum|min|max) (?:by \((?P<labels>[^)]*)\) )?\((?:rate\(|increase\()?$"
    wrong = []
    for match in re.finditer(r"baton_gateway_\w+", query):
        aggregate = re.search(over_all, query[: match.start()])
        if aggregate is None or {"pod", "instance"} & set(re.findall(r"\w+", aggregate["labels"] or "")):
            wrong.append(match[0])
    return wrong


@every_dashboard
def test_series_of_the_gateway_are_taken_over_all_of_its_replicas(dashboard: Dashboard) -> None:
    assert [name for query in queries(read(dashboard)) for name in not_over_replicas(query)] == []


def test_a_query_about_one_replica_would_be_found() -> None:
    assert not_over_replicas("sum by (role, pod) (rate(baton_gateway_routed_total{x='1'}[5m]))") != []
    assert not_over_replicas("baton_gateway_links{x='1'}") != []


def test_a_mistake_in_a_query_would_be_found() -> None:
    names = families()
    assert problems("sum (rate(baton_gateway_request_total[5m]))", names) == ["no series baton_gateway_request_total"]
    assert problems('baton_sequences{rôle="x",sate="running"}'.replace("ô", "o"), names) == [
        "baton_sequences has no label sate"
    ]
    assert problems("sum by (tenant) (baton_sequences)", names) == ["no label tenant"]


def recorded_tests(expressions: list[str]) -> list[Json]:
    """A test that each query has an answer that is a number."""
    return [
        {
            "interval": "30s",
            "input_series": [{"series": str(series), "values": series.values} for series in recorded()],
            "promql_expr_test": [
                {
                    "expr": f"count(({expression}) > -Inf) > bool 0",
                    "eval_time": "20m",
                    "exp_samples": [{"labels": "{}", "value": 1}],
                }
                for expression in expressions
            ],
        }
    ]


@every_dashboard
def test_no_panel_is_empty_on_recorded_series(dashboard: Dashboard, tmp_path: Path) -> None:
    assert run_promtool(tmp_path, recorded_tests(queries(read(dashboard)))) == ""


def test_an_empty_panel_would_be_found(tmp_path: Path) -> None:
    assert "baton_sequences" in run_promtool(tmp_path, recorded_tests(['baton_sequences{state="absent"}']))


def test_the_chart_ships_each_dashboard_where_it_is_asked_for() -> None:
    def config_maps(values: dict[str, str]) -> list[Json]:
        return [manifest for manifest in rendered(PINNED | values) if manifest["kind"] == "ConfigMap"]

    assert config_maps({}) == []
    maps = config_maps({"monitoring.dashboards.enabled": "true"})
    assert len(maps) == len(DASHBOARDS)
    for config_map in maps:
        ((name, text),) = config_map["data"].items()
        board = json.loads(text)
        assert name == f"{board['uid']}.json"
        assert json.dumps(board) == json.dumps(json.loads((dashboards.OUT / name.removeprefix("baton-")).read_text()))
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert len(text) < 100_000, "a ConfigMap holds 1 MiB"
    other = {"monitoring.dashboards.enabled": "true", "monitoring.dashboards.labels.folder": "llm"}
    assert config_maps(other)[0]["metadata"]["labels"]["folder"] == "llm"
