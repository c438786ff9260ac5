"""The shipped examples are valid, short, and render."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from baton_control.spec.gateway_fields import ServiceType
from baton_control.spec.manifest import read_manifest
from baton_control.worker_specs import Device, Site, gateway_spec, worker_spec
from baton_wire.messages.values import POOL_ROLES

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_has_at_most_25_lines_and_renders(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 25
    deployment = read_manifest(path)
    site = Site("python3", "/model", "/keys", "file:/p", "file:/d", Device.CPU, Device.CPU)
    site = dataclasses.replace(site, tls_path="/tls", api_keys_path="/api-keys")
    specs = [worker_spec(deployment, role, site) for role in POOL_ROLES] + [gateway_spec(deployment, site)]
    assert len({spec.revision for spec in specs}) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_that_is_reached_from_outside_asks_for_keys_over_https(path: Path) -> None:
    gateway = read_manifest(path).spec.gateway
    if gateway.service.type is not ServiceType.CLUSTER_IP:
        assert gateway.api_keys is not None
        assert gateway.tls is not None


def test_there_are_examples() -> None:
    assert {"tiny.yaml", "llama-8b-gpu.yaml"} <= {path.name for path in EXAMPLES}
