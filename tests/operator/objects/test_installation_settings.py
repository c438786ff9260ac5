"""What an installation adds to the objects of all deployments, or leaves out: ids, networks, monitors, addresses."""

from __future__ import annotations

import dataclasses
from typing import Any

import kubernetes_validate
import pytest

from baton_control.errors import ManifestError
from baton_control.spec.api import LLMDeployment
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import standing_objects
from baton_operator.objects.fetch_state import FETCH_ANNOTATION
from baton_operator.objects.network_settings import NetworkSettings, WorkloadPolicies
from baton_operator.objects.pod_ids import PodIds
from baton_operator.objects.pods import gateway_template, worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_testing.kube.world import MASTERS, PLATFORM
from baton_wire.messages.values import POOL_ROLES, Role

Json = dict[str, Any]
OWNER = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
FETCHED = {"source": "hf://org/model@" + "c" * 40, "servedName": "m", "maxContextTokens": 512}
NO_IDS = PodIds(run_as_user=None, run_as_group=None, fs_group=None)
MESH_OUT: Json = {"ports": [{"protocol": "TCP", "port": 15012}]}
MESH_IN: Json = {"ports": [{"protocol": "TCP", "port": 15008}]}


def rendered(**platform: Any) -> list[Json]:
    given = dataclasses.replace(PLATFORM, **platform)
    return [dict(manifest) for manifest in standing_objects(deployment(model=FETCHED), given, OWNER, MASTERS)]


def pods(platform: Platform) -> list[Json]:
    given = deployment(model=FETCHED)
    workers = [worker_template(given, role, platform).pod for role in POOL_ROLES]
    templates: list[Json] = [gateway_template(given, platform), *workers, fetch_template(given, platform)]
    return [template["spec"] for template in templates]


def fetch_template(given: LLMDeployment, platform: Platform) -> Json:
    (job,) = (m for m in standing_objects(given, platform, OWNER, MASTERS) if m["kind"] == "Job")
    template: Json = job["spec"]["template"]  # type: ignore[index]
    return template


def of_kind(manifests: list[Json], kind: str) -> dict[str, Json]:
    return {manifest["metadata"]["name"]: manifest for manifest in manifests if manifest["kind"] == kind}


def test_ids_left_to_the_namespace_are_in_no_pod_and_pods_stay_restricted() -> None:
    every = pods(dataclasses.replace(PLATFORM, pod_ids=NO_IDS))
    assert len(every) == 4
    for pod in every:
        assert pod["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        assert violations(pod) == []


def test_an_id_of_the_installation_is_in_every_pod() -> None:
    for pod in pods(dataclasses.replace(PLATFORM, pod_ids=PodIds(run_as_user=7, run_as_group=None))):
        context = pod["securityContext"]
        assert (context["runAsUser"], context["fsGroup"]) == (7, 10_001)
        assert "runAsGroup" not in context


def test_pods_listen_on_both_families() -> None:
    for pod in pods(PLATFORM)[:3]:
        listens = [argument for argument in pod["containers"][0]["args"] if "listen=" in argument]
        assert listens
        assert all("=[::]:" in argument or argument == "--admin-listen=127.0.0.1:8002" for argument in listens)


def test_services_take_both_families_and_name_their_protocols() -> None:
    services = of_kind(rendered(), "Service")
    assert len(services) == 3
    for service in services.values():
        assert service["spec"]["ipFamilyPolicy"] == "PreferDualStack"
        for port in service["spec"]["ports"]:
            assert port["appProtocol"] == {"http": "http", "pair": "tcp"}[port["name"]]
    secure = standing_objects(deployment(gateway__tls={"secretName": "cert"}), PLATFORM, OWNER, MASTERS)
    gateway = next(m for m in secure if m["kind"] == "Service" and str(m["metadata"]["name"]).endswith("-gateway"))  # type: ignore[index]
    assert gateway["spec"]["ports"][0]["appProtocol"] == "https"  # type: ignore[index]


def test_every_dns_port_is_open() -> None:
    network = NetworkSettings(dns_ports=(53, 5353))
    (denied,) = (p for name, p in of_kind(rendered(network=network), "NetworkPolicy").items() if "default" in name)
    ports = [(port["protocol"], port["port"]) for port in denied["spec"]["egress"][0]["ports"]]
    assert ports == [("UDP", 53), ("TCP", 53), ("UDP", 5353), ("TCP", 5353)]


@pytest.mark.parametrize("version", KUBERNETES)
def test_additional_rules_are_for_all_pods_of_every_deployment(version: str) -> None:
    network = NetworkSettings(ingress=(MESH_IN,), egress=(MESH_OUT,))
    before, after = (of_kind(rendered(**more), "NetworkPolicy") for more in ({}, {"network": network}))
    changed = {name for name in before if before[name] != after[name]}
    (name,) = changed
    policy = after[name]["spec"]
    assert policy["podSelector"] == {"matchLabels": {"baton.dev/deployment": name.removesuffix("-default")}}
    assert policy["ingress"] == [MESH_IN]
    assert policy["egress"][1:] == [MESH_OUT]
    kubernetes_validate.validate(after[name], version, strict=True)


def test_without_managed_policies_a_deployment_has_none_and_everything_else() -> None:
    with_policies, without = rendered(), rendered(network=NetworkSettings(workloads=WorkloadPolicies.OFF))
    assert of_kind(without, "NetworkPolicy") == {}
    assert without == [manifest for manifest in with_policies if manifest["kind"] != "NetworkPolicy"]


def test_monitors_and_alerts_have_the_labels_by_which_a_prometheus_selects_them() -> None:
    more = {"monitoring_labels": (("app.kubernetes.io/name", "theirs"), ("release", "stack"))}
    manifests = rendered(monitors=True, alerts=True, monitoring_interval="1m", **more)
    found = {**of_kind(manifests, "PodMonitor"), **of_kind(manifests, "PrometheusRule")}
    assert len(found) == 4
    for manifest in found.values():
        labels = manifest["metadata"]["labels"]
        assert (labels["release"], labels["app.kubernetes.io/name"]) == ("stack", "baton")
    for monitor in of_kind(manifests, "PodMonitor").values():
        assert [endpoint["interval"] for endpoint in monitor["spec"]["podMetricsEndpoints"]] == ["1m"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"sidecar.istio.io/inject": "true"}, "not allowed: sidecar.istio.io is reserved: must be false"),
        ({"istio.io/dataplane-mode": "ambient"}, "not allowed: istio.io is reserved: must be none"),
        ({"istio.io/rev": "canary"}, "istio.io is reserved"),
        ({"sidecar.istio.io/other": "false"}, "sidecar.istio.io is reserved"),
    ],
)
def test_a_mesh_can_be_left_and_not_be_joined(labels: dict[str, str], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        deployment(podMetadata__labels=labels)


def test_labels_that_leave_a_mesh_are_on_every_pod() -> None:
    labels = {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}
    given = deployment(model=FETCHED, podMetadata__labels=labels)
    workers = worker_template(given, Role.DECODE, PLATFORM).pod
    templates: list[Json] = [gateway_template(given, PLATFORM), workers, fetch_template(given, PLATFORM)]
    for template in templates:
        assert labels.items() <= template["metadata"]["labels"].items()


def test_gateways_alone_keep_a_ledger_and_only_where_the_installation_wants_it() -> None:
    for platform, flags in ((PLATFORM, set()), (dataclasses.replace(PLATFORM, ledger="stdout"), LEDGER_FLAGS)):
        gateway: Json = gateway_template(deployment(model=FETCHED), platform)
        container = gateway["spec"]["containers"][0]
        assert {argument for argument in container["args"] if argument.startswith("--ledger")} == flags
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}
        workers: Json = worker_template(deployment(model=FETCHED), Role.DECODE, platform).pod
        assert not any("ledger" in argument for argument in workers["spec"]["containers"][0]["args"])


LEDGER_FLAGS = {"--ledger=/tmp/ledger", "--ledger-lines=stdout"}


def test_names_of_other_projects_reach_pods_only_where_the_installation_wants_them() -> None:
    given = deployment(model={**FETCHED, "servedName": "org/model"})
    for platform, flags, keys in (
        (PLATFORM, 0, set()),
        (dataclasses.replace(PLATFORM, metrics_compat="vllm", llmd_labels=True), 1, {"llm-d.ai/role"}),
    ):
        templates: list[Json] = [gateway_template(given, platform)]
        templates += [worker_template(given, role, platform).pod for role in POOL_ROLES]
        for template in templates:
            arguments = template["spec"]["containers"][0]["args"]
            assert arguments.count("--metrics-compat=vllm") == flags
            assert {key for key in template["metadata"]["labels"] if key.startswith("llm-d.ai/")} == keys
    named = gateway_template(deployment(), dataclasses.replace(PLATFORM, llmd_labels=True))
    labels: Json = named["metadata"]["labels"]  # type: ignore[index]
    assert (labels["llm-d.ai/role"], labels["llm-d.ai/model"]) == ("gateway", deployment().spec.model.served_name)


def test_json_logs_of_the_installation_reach_every_pod_and_keep_the_identity_of_a_fetch() -> None:
    def formats(json_logs: bool) -> list[list[Json]]:
        every = pods(dataclasses.replace(PLATFORM, json_logs=json_logs))
        return [[v for v in pod["containers"][0]["env"] if v["name"] == "BATON_LOG_FORMAT"] for pod in every]

    assert formats(False) == [[]] * 4
    assert formats(True) == [[{"name": "BATON_LOG_FORMAT", "value": "json"}]] * 4
    (before,), (after,) = (of_kind(rendered(json_logs=json), "Job").items() for json in (False, True))
    assert after[1]["metadata"]["annotations"][FETCH_ANNOTATION] == before[0]
