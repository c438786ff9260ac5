"""Objects of other projects' kinds, held against the schemas of those projects: monitors, alerts and routes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from find_crd_schemas import find

from baton_operator.objects.cluster import Owner
from baton_operator.objects.desired import standing_objects
from baton_testing.kube.charts import PINNED, rendered
from baton_testing.kube.manifests import deployment
from baton_testing.kube.world import MASTERS, PLATFORM

Json = dict[str, Any]
KINDS = ("PodMonitor", "PrometheusRule", "HTTPRoute")
EXAMPLES = Path(__file__).parents[3] / "examples"
VALUES = {
    "crds.install": "false",
    "monitoring.namespace": "monitoring",
    "monitoring.podMonitor": "true",
    "monitoring.prometheusRule": "true",
    "monitoring.labels.release": "stack",
    "monitoring.interval": "1m",
}


def problems(objects: list[Json]) -> list[str]:
    """The problem of each object; empty: it is valid. Skips the test without the schemas."""
    folder = find(may_fetch=False)
    if folder is None:
        pytest.skip("no schemas: `python scripts/find_crd_schemas.py` fetches them")
    command = ["node", str(folder / "check.mjs")]
    done = subprocess.run(command, input=json.dumps(objects), capture_output=True, text=True, timeout=60, check=True)
    found: list[str] = json.loads(done.stdout)
    return found


def every_object() -> list[Json]:
    labels = (("release", "stack"),)
    platform = dataclasses.replace(PLATFORM, monitors=True, alerts=True, monitoring_labels=labels)
    route = {"parent": "edge", "parentNamespace": "infra", "hostnames": ["chat.example.com"]}
    given = deployment(gateway={"route": route, "openAccess": True, "tls": {"secretName": "cert"}})
    objects = [*standing_objects(given, platform, Owner("uid-1"), MASTERS), *rendered(PINNED | VALUES)]
    text = (EXAMPLES / "gateway-api" / "inference-pool.yaml").read_text(encoding="utf-8")
    return [dict(manifest) for manifest in (*objects, *yaml.safe_load_all(text)) if manifest["kind"] in KINDS]


def test_monitors_alerts_and_routes_are_what_their_projects_define() -> None:
    objects = every_object()
    assert {manifest["kind"] for manifest in objects} == set(KINDS)
    assert problems(objects) == [""] * len(objects)


def test_a_mistake_would_be_found() -> None:
    spoilt = every_object()
    for manifest in spoilt:
        manifest["spec"] = {"podMetricsEndpoints": 5, "groups": 5, "rules": 5}
    assert all(problems(spoilt))
