"""Objects of optional APIs: made when asked for, left out with a note when not served, deleted when withdrawn."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import kubernetes_validate
import msgspec
import pytest

from baton_operator.kube.kinds import AUTOSCALERS, BUDGETS, INFERENCE_POOLS, MONITORS, OPTIONAL, ROUTES, RULES
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.optional import optional_objects
from baton_operator.passes.rendering import Inputs, Rendering, render
from baton_testing.kube.campaign import run
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.scenarios import SCENARIOS
from baton_testing.kube.world import MASTERS, PLATFORM, deployment_body
from baton_wire.messages.values import POOL_ROLES, Role

OWNER = Owner("u1")
WATCHING = dataclasses.replace(PLATFORM, monitors=True, alerts=True)
POOLED = dataclasses.replace(PLATFORM, inference_pool=True)
ROUTE = {"parent": "edge", "parentNamespace": "infra", "hostnames": ["chat.example.com"]}


def objects(**fields: object) -> dict[tuple[str, str], Any]:
    manifests = optional_objects(deployment(**fields), WATCHING, OWNER)
    return {(str(manifest["kind"]), manifest["metadata"]["name"]): manifest for manifest in manifests}  # type: ignore[index]


def test_nothing_is_made_that_nobody_asks_for() -> None:
    assert optional_objects(deployment(), PLATFORM, OWNER) == ()


def test_a_route_leads_to_the_gateways_service_and_never_cuts_an_answer() -> None:
    spec = objects(gateway={"route": ROUTE, "service": {"port": 8080}, "openAccess": True})[
        "HTTPRoute", "chat-gateway"
    ]["spec"]
    assert spec["parentRefs"] == [{"name": "edge", "namespace": "infra"}]
    assert spec["hostnames"] == ["chat.example.com"]
    assert spec["rules"] == [
        {"backendRefs": [{"name": "chat-gateway", "port": 8080}], "timeouts": {"request": "0s"}},
    ]


def test_a_gateway_that_refuses_time_outs_gets_a_route_without_them() -> None:
    platform = dataclasses.replace(PLATFORM, route_timeouts=False)
    (route,) = optional_objects(deployment(gateway={"route": ROUTE, "openAccess": True}), platform, OWNER)
    spec: Any = route["spec"]
    assert spec["rules"] == [{"backendRefs": [{"name": "chat-gateway", "port": 80}]}]


@pytest.mark.parametrize("processes", [1, 4])
def test_an_autoscaler_counts_cpus_that_processes_use_and_gives_pods_up_slowly(processes: int) -> None:
    given = {"min": 2, "max": 6, "targetCpu": 65}
    spec = objects(gateway={"autoscaling": given, "processes": processes})["HorizontalPodAutoscaler", "chat-gateway"][
        "spec"
    ]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "chat-gateway"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 6)
    [metric] = spec["metrics"]
    target = {"type": "AverageValue", "averageValue": f"{650 * processes}m"}
    assert metric == {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    assert spec["behavior"]["scaleDown"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 60}]
    for version in KUBERNETES:
        for manifest in objects(gateway={"autoscaling": given}).values():
            if manifest["kind"] == "HorizontalPodAutoscaler":
                kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("tls", [None, {"secretName": "cert"}])
def test_every_role_is_scraped_by_its_own_labels(tls: object) -> None:
    by_name = objects(gateway={"tls": tls})
    for role in (*POOL_ROLES, Role.GATEWAY):
        spec = by_name["PodMonitor", f"chat-{role}"]["spec"]
        assert spec["selector"]["matchLabels"] == {"baton.dev/deployment": "chat", "baton.dev/role": role}
        [relabeling] = spec["podMetricsEndpoints"][0]["relabelings"]
        assert relabeling == {
            "sourceLabels": ["__meta_kubernetes_pod_label_baton_dev_deployment"],
            "targetLabel": "deployment",
        }, "dashboards and alerts tell deployments apart by it"
        scheme = spec["podMetricsEndpoints"][0].get("scheme", "http")
        assert scheme == ("https" if tls and role is Role.GATEWAY else "http")


def test_alerts_are_about_the_targets_that_the_user_set() -> None:
    slo = {"ttft": {"target": "300ms", "percentile": 99.5}, "tpot": {"target": "20ms"}}
    rules = objects(slo=slo)["PrometheusRule", "chat"]["spec"]["groups"][0]["rules"]
    expressions = {rule["alert"]: rule["expr"] for rule in rules}
    assert expressions["BatonTtftMissed"].startswith("histogram_quantile(0.995, ")
    assert expressions["BatonTtftMissed"].endswith("> 0.3")
    assert expressions["BatonTpotMissed"].endswith("> 0.02")
    for expression in expressions.values():
        assert expression.count("(") == expression.count(")")
        assert set(re.findall(r'namespace="([^"]*)"', expression)) == {"default"}


def rendered(*served: Any, platform: Platform = WATCHING, **gateway: Any) -> Rendering:
    body = deployment_body(gateway={"route": {"parent": "edge"}, "openAccess": True, **gateway})
    return render(Inputs(msgspec.json.encode(body), "", OWNER, (), platform, MASTERS, frozenset(served)))


def test_what_is_asked_for_and_not_served_is_a_word_in_a_condition() -> None:
    assert rendered(AUTOSCALERS, BUDGETS, ROUTES, MONITORS, RULES).notes == ()
    assert rendered(AUTOSCALERS, BUDGETS, MONITORS).notes == (
        "HTTPRoutes are left out: gateway.networking.k8s.io/v1 is not served, or not granted",
        "PrometheusRules are left out: monitoring.coreos.com/v1 is not served, or not granted",
    )
    assert [desired.resource for desired in rendered(MONITORS).standing if desired.resource in (ROUTES, RULES)] == []


def route_backends(rendering: Rendering) -> list[Any]:
    (route,) = (desired.body for desired in rendering.standing if desired.resource == ROUTES)
    rule: Any = route["spec"]["rules"][0]  # type: ignore[index]
    return list(rule["backendRefs"])


def test_an_inference_pool_has_the_gateway_pods_and_takes_the_route() -> None:
    rendering = rendered(*OPTIONAL, platform=POOLED)
    (pool,) = (desired.body for desired in rendering.standing if desired.resource == INFERENCE_POOLS)
    assert pool["spec"] == {
        "selector": {"matchLabels": {"baton.dev/deployment": "chat", "baton.dev/role": "gateway"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "chat-epp", "port": {"number": 9002}, "failureMode": "FailOpen"},
    }
    pods: Any = next(desired.body for desired in rendering.standing if desired.body["kind"] == "Deployment")
    labels: dict[str, str] = pods["spec"]["template"]["metadata"]["labels"]
    assert {"baton.dev/deployment": "chat", "baton.dev/role": "gateway"}.items() <= labels.items()
    group = {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "chat"}
    assert route_backends(rendering) == [group]
    assert rendering.notes == ()


@pytest.mark.parametrize(
    ("served", "gateway", "note"),
    [
        (set(OPTIONAL) - {INFERENCE_POOLS}, {}, "inference.networking.k8s.io/v1 is not served, or not granted"),
        (OPTIONAL, {"tls": {"secretName": "cert"}}, "gateway.tls is given, and a Gateway speaks plain HTTP to a pool"),
    ],
)
def test_where_there_can_be_no_inference_pool_the_route_leads_to_the_service_and_a_note_says_why(
    served: Any, gateway: Any, note: str
) -> None:
    rendering = rendered(*served, platform=POOLED, **gateway)
    assert INFERENCE_POOLS not in {desired.resource for desired in rendering.standing}
    assert route_backends(rendering) == [{"name": "chat-gateway", "port": 80}]
    assert rendering.notes == (f"InferencePools are left out: {note}",)


def test_what_is_withdrawn_goes() -> None:
    scenario = next(known for known in SCENARIOS if known.name == "optional objects come and go")
    ended = run(scenario)
    for plural, count in (
        ("httproutes", 1),
        ("horizontalpodautoscalers", 1),
        ("podmonitors", 3),
        ("prometheusrules", 1),
    ):
        assert len([call for call in ended.calls if call.startswith(f"delete {plural}")]) == count
        assert not [name for name in ended.outcome if name.startswith(plural)]
