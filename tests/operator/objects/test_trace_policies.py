"""The gateway's way to a collector of traces: open inside the cluster, and nowhere else by a deployment's author."""

from __future__ import annotations

from typing import Any

import pytest

from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.reachability import policies
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

IMAGES = [f"registry.example/{name}@sha256:{'a' * 64}" for name in ("worker", "gateway")]
PLATFORM, OWNER = Platform(IMAGES[0], IMAGES[1]), Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")


def egress(role: Role, **fields: object) -> list[Any]:
    """The egress rules of the role's Pods."""
    found = policies(deployment(**fields), PLATFORM, OWNER)
    [policy] = [policy for policy in found if str(policy["metadata"]["name"]).endswith(f"-{role}")]  # type: ignore[index]
    rules: list[Any] = policy["spec"].get("egress", [])  # type: ignore[attr-defined]
    return rules


def namespace(name: str) -> dict[str, object]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


@pytest.mark.parametrize(
    ("endpoint", "peer", "port"),
    [
        ("http://collector.tracing.svc:4318", namespace("tracing"), 4318),
        ("https://collector.tracing.svc.cluster.local/v1/traces", namespace("tracing"), 443),
        ("http://collector", {"podSelector": {}}, 80),
        ("https://otlp.example.com:4318", None, 0),
        ("http://169.254.169.254", None, 0),
        ("http://svc.svc.example.com", None, 0),
    ],
)
def test_a_collector_opens_the_gateways_way_to_it_inside_the_cluster_alone(
    endpoint: str, peer: object, port: int
) -> None:
    tracing = {"telemetry": {"tracing": {"endpoint": endpoint}}}
    opened = [] if peer is None else [{"to": [peer], "ports": [{"protocol": "TCP", "port": port}]}]
    assert egress(Role.GATEWAY, **tracing) == [*egress(Role.GATEWAY), *opened]
    for role in (Role.PREFILL, Role.DECODE):
        assert egress(role, **tracing) == egress(role)
