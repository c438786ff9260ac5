"""Writes the Grafana dashboards of the chart: `python scripts/dashboards.py [--check]`. The table is in the
modules dashboards_serving and dashboards_workers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dashboard_panels import Dashboard, Panel
from dashboards_serving import SERVICE, SIZING, TENANTS
from dashboards_workers import HANDOVER, POOLS

Json = dict[str, Any]
DASHBOARDS = (SERVICE, POOLS, HANDOVER, TENANTS, SIZING)
ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "charts" / "baton" / "files" / "dashboards"
SCHEMA_VERSION = 39
"""The JSON model of Grafana 10.4; newer ones migrate it when they load it."""
MATCHERS = 'namespace=~"$namespace",deployment=~"$deployment"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
COLUMNS, GRAPH, STAT = 24, (12, 8), (6, 5)
"""Grafana's columns, and the width and height of panels."""
TEXTS = {"worker_price": "2", "prompt_price": "0.5", "token_price": "1.5"}
"""Variables that a reader types, with their first values."""
TARGETS = {"ttft_target": ("baton_gateway_ttft_seconds_bucket", "0.5"),
           "tpot_target": ("baton_gateway_tpot_seconds_bucket", "0.05")}  # fmt: skip
"""Variables that a reader chooses among the bounds of a histogram, with the default targets of `spec.slo`."""


def expression(text: str) -> str:
    """A query of the table as Grafana takes it."""
    return text.replace("@", MATCHERS).replace("[~]", "[$__rate_interval]")


def dashboard_json(dashboard: Dashboard) -> Json:
    """The dashboard in Grafana's JSON model."""
    return {
        "annotations": {"list": []},
        "editable": True,
        "graphTooltip": 1,
        "links": [
            {"title": "Baton", "type": "dashboards", "tags": ["baton"], "asDropdown": True, "includeVars": True,
             "keepTime": True, "icon": "external link", "targetBlank": False, "tooltip": "", "url": ""},
        ],
        "panels": [
            _panel(number, panel, place)
            for number, (panel, place) in enumerate(_places(dashboard.panels), start=1)
        ],
        "refresh": "30s",
        "schemaVersion": SCHEMA_VERSION,
        "tags": ["baton"],
        "templating": {"list": [*_common_variables(), *(_variable(name) for name in dashboard.choices)]},
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "",
        "title": dashboard.title,
        "uid": f"baton-{dashboard.name}",
        "version": 1,
    }  # fmt: skip


def _places(panels: tuple[Panel, ...]) -> list[tuple[Panel, Json]]:
    """The panels with their places, in rows from left to right. A row ends where the next panel does not fit."""
    placed: list[tuple[Panel, Json]] = []
    x = y = row_height = 0
    for panel in panels:
        width, height = STAT if panel.is_stat else GRAPH
        if x + width > COLUMNS or height != row_height:
            x, y, row_height = 0, y + row_height, height
        placed.append((panel, {"x": x, "y": y, "w": width, "h": height}))
        x += width
    return placed


def _panel(number: int, panel: Panel, place: Json) -> Json:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression(query), "legendFormat": legend,
         "editorMode": "code", "range": True, "instant": False}
        for index, (legend, query) in enumerate(panel.queries)
    ]  # fmt: skip
    shape: Json
    if panel.is_stat:
        reduce = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        shape = {"type": "stat", "options": {"reduceOptions": reduce, "colorMode": "none", "graphMode": "area"}}
    else:
        legend_options = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        shape = {
            "type": "timeseries",
            "options": {"legend": legend_options, "tooltip": {"mode": "multi", "sort": "desc"}},
        }
    bounds: Json = {"min": 0, "max": 1} if panel.unit == "percentunit" and panel.is_stat else {"min": 0}
    return {
        "id": number,
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, **bounds}, "overrides": []},
        "targets": targets,
        **shape,
    }


def _common_variables() -> list[Json]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    spaces = _query_variable("namespace", "Namespace", "label_values(baton_gateway_requests_running, namespace)")
    names = _query_variable(
        "deployment",
        "Deployment",
        'label_values(baton_gateway_requests_running{namespace=~"$namespace"}, deployment)',
    )
    every = {"includeAll": True, "multi": True, "current": {"text": ["All"], "value": ["$__all"]}}
    return [source, {**spaces, **every}, {**names, **every}]


def _query_variable(name: str, label: str, query: str) -> Json:
    return {"name": name, "label": label, "type": "query", "datasource": SOURCE, "definition": query, "hide": 0,
            "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1}  # fmt: skip


def _variable(name: str) -> Json:
    """A further variable of one dashboard."""
    label = name.replace("_", " ").replace("ttft", "TTFT").replace("tpot", "TPOT")
    if name in TEXTS:
        value = TEXTS[name]
        return {"name": name, "label": label, "type": "textbox", "query": value, "hide": 0,
                "current": {"text": value, "value": value}}  # fmt: skip
    metric, value = TARGETS[name]
    numeric = {"sort": 3, "multi": False, "includeAll": False, "current": {"text": value, "value": value}}
    return {**_query_variable(name, f"{label} (s)", f"label_values({metric}{{{MATCHERS}}}, le)"), **numeric}


def text_of(dashboard: Dashboard) -> str:
    """The file of a dashboard."""
    return json.dumps(dashboard_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def main(arguments: list[str]) -> int:
    """Write or compare the files. Returns the exit status."""
    wanted = {OUT / f"{dashboard.name}.json": text_of(dashboard) for dashboard in DASHBOARDS}
    present = {path: path.read_text(encoding="utf-8") for path in OUT.glob("*.json")}
    if "--check" in arguments:
        for path in sorted(path for path in wanted.keys() | present if wanted.get(path) != present.get(path)):
            print(f"{path.relative_to(ROOT)} is stale: run `python scripts/dashboards.py`", file=sys.stderr)
        return int(wanted != present)
    OUT.mkdir(parents=True, exist_ok=True)
    for path in present.keys() - wanted.keys():
        path.unlink()
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
