"""The chart as Helm renders it: valid for Kubernetes, restricted, refused by its schema where values are wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from baton_control.names import Key
from baton_operator import metrics
from baton_operator.kube.claims import claim_name
from baton_operator.kube.kinds import OPTIONAL, TENANTS, WATCHED
from baton_operator.metrics import CONDITIONS
from baton_operator.objects.pod_ids import PodIds
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.schema.crd import definitions
from baton_operator.schema.status import Condition, DeploymentStatus
from baton_operator.settings import parse
from baton_testing.kube.charts import PINNED, operator_arguments, rendered, template
from baton_testing.kube.manifests import KUBERNETES
from baton_testing.kube.pod_security import violations

Json = dict[str, Any]
NODE_TERM = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0]"
)
JWT = {
    "identity.jwt.issuer": "https://id.example.com",
    "identity.jwt.audience": "baton",
    "identity.jwt.jwks.url": "https://id.example.com/jwks.json",
}
HALF_CONFIGURED = (
    ("jwt.issuer", ""),
    ("jwt.audience", ""),
    ("jwt.jwks.url", ""),
    ("jwt.jwks.url", "http://id.example.com/jwks.json"),
    ("jwt.jwks.url", "https://user@id.example.com/jwks.json"),
    ("jwt.jwks.configMapName", "keys"),
    ("jwt.claim", ""),
    ("jwt.algorithms", "{HS256}"),
    ("jwt.algorithms", "{none}"),
    ("jwt.leewaySeconds", "301"),
    ("jwt.secret", "x"),
    ("trustedHeader.secretName", "Not_A_Name"),
    ("trustedHeader.name", "X-Tenant"),
    ("namespaces", "{Team_A}"),
)
"""Identities that would let in nobody or everybody, each added to a complete one."""
FULL = PINNED | {
    "networkPolicy.dnsPorts": "{53,5353}",
    "networkPolicy.additionalEgress[0].ports[0].port": "15012",
    "networkPolicy.additionalIngress[0].ports[0].port": "15008",
    "monitoring.labels.release": "stack",
    "monitoring.interval": "1m",
    "ledger": "stdout",
    "batches.claimName": "batches",
    "batches.namespaces": "{team-a}",
    "batches.maxFileSize": "1Gi",
    "identity.namespaces": "{team-a}",
    "identity.jwt.issuer": "https://id.example.com",
    "identity.jwt.audience": "baton",
    "identity.jwt.jwks.url": "https://id.example.com/jwks.json",
    "identity.trustedHeader.secretName": "front",
    "metricsCompat": "vllm",
    "llmdLabels": "true",
    "inferencePool.enabled": "true",
    "routeTimeouts": "false",
    "logFormat": "json",
    "podLabels.team": "a",
    "podAnnotations.note": "b",
    "extraEnv[0].name": "HTTPS_PROXY",
    "extraEnv[0].value": "http://proxy:3128",
    f"{NODE_TERM}.key": "a",
    f"{NODE_TERM}.operator": "Exists",
    "watch.namespaces": "{team-a,team-b}",
    "monitoring.namespace": "monitoring",
    "monitoring.podMonitor": "true",
    "monitoring.prometheusRule": "true",
    "images.pullSecrets": "{registry}",
    "fetch.cidrs": "{10.20.0.0/16,fd00::/64}",
    "priorityClassName": "system-cluster-critical",
    "nodeSelector.kubernetes\\.io/os": "linux",
}

READY = Condition.model_validate(
    {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "x",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
)
WIDE = PINNED | {"watch.clusterWide": "true"}


def test_a_whole_cluster_is_watched_only_where_an_admission_policy_guards_its_secrets() -> None:
    kinds = {manifest["kind"] for manifest in rendered(WIDE)}
    assert {"ClusterRoleBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} <= kinds
    assert rendered(PINNED | {"secretsPolicy.enabled": "false"}), "in named namespaces that is the installer's choice"


def test_a_second_rendering_equals_the_first() -> None:
    """GitOps tools render without a cluster, and apply what differs."""
    for values in (PINNED, FULL, WIDE):
        assert template(values).stdout == template(values).stdout
        assert not [manifest for manifest in rendered(values) if manifest["kind"] == "Secret"]


def test_the_operator_may_read_its_master_key_by_name_and_no_other_secret() -> None:
    manifests = rendered(PINNED)
    roles = [manifest for manifest in manifests if manifest["kind"] in ("Role", "ClusterRole")]
    readable = [
        (role["metadata"]["namespace"], rule["resourceNames"], rule["verbs"])
        for role in roles
        for rule in role["rules"]
        if "secrets" in rule["resources"] and not set(rule["verbs"]) <= {"create", "patch"}
    ]
    name = "baton-operator-master-keys"
    assert readable == [("baton-system", [name], ["get"])]
    settings = parse(operator_arguments(manifests))
    assert (settings.master_keys, settings.master_key_secret) == (None, name)
    (policy,) = (manifest for manifest in manifests if manifest["kind"] == "ValidatingAdmissionPolicy")
    (excepted,) = (e for e in policy["spec"]["matchConditions"] if e["name"] == "not-its-master-key")
    for needed in ('request.operation == "CREATE"', f'name == "{name}"', 'namespace == "baton-system"', "Opaque"):
        assert needed in excepted["expression"]
    given = rendered(PINNED | {"masterKeys.existingSecret": "mine"})
    assert not any(manifest["metadata"]["name"].endswith("-master-keys") for manifest in given)
    assert parse(operator_arguments(given)).master_key_secret is None
    assert "not-its-master-key" not in str(given)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [PINNED, FULL, WIDE], ids=["least", "full", "wide"])
def test_everything_is_valid_for_kubernetes(values: dict[str, str], version: str) -> None:
    for manifest in rendered(values):
        if not manifest["apiVersion"].startswith(("monitoring.", "apiextensions.")):
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_operators_pod_is_restricted_and_understands_its_flags(tmp_path: Path) -> None:
    for values in (FULL, WIDE):
        (deployment,) = (manifest for manifest in rendered(values) if manifest["kind"] == "Deployment")
        pod = deployment["spec"]["template"]["spec"]
        assert violations(pod) == []
        container = pod["containers"][0]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        settings = parse(container["args"])
        assert settings.namespaces == (None if "watch.clusterWide" in values else ("team-a", "team-b"))
        assert settings.platform.worker_image == PINNED["images.worker"]
        assert settings.platform.fetch_cidrs == (("10.20.0.0/16", "fd00::/64") if values is FULL else ())
        assert settings.platform.pod_policy == PodPolicy(), "the values are the defaults of the flag"
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports["http"] == settings.listen[1]
        assert settings.gateway_listen is not None
        assert ports["gateways"] == settings.gateway_listen[1]


def test_definitions_are_those_of_the_api_and_outlive_the_release() -> None:
    shipped = {
        manifest["metadata"]["name"]: manifest
        for manifest in rendered(PINNED)
        if manifest["kind"] == "CustomResourceDefinition"
    }
    wanted = {str(definition["metadata"]["name"]): definition for definition in definitions().values()}  # type: ignore[index]
    assert {name: definition["spec"] for name, definition in shipped.items()} == {
        name: definition["spec"] for name, definition in wanted.items()
    }
    for definition in shipped.values():
        assert definition["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not [e for e in rendered(PINNED | {"crds.install": "false"}) if e["kind"] == "CustomResourceDefinition"]


def test_rights_are_roles_of_the_named_namespaces_unless_asked_for_all() -> None:
    roles = [manifest for manifest in rendered(FULL) if manifest["kind"] == "Role"]
    assert {role["metadata"]["namespace"] for role in roles} == {"team-a", "team-b", "baton-system"}
    wide = rendered(WIDE)
    assert {manifest["metadata"]["namespace"] for manifest in wide if manifest["kind"] == "Role"} == {"baton-system"}
    bound = [manifest["metadata"]["name"] for manifest in wide if manifest["kind"] == "ClusterRoleBinding"]
    assert sorted(bound) == ["baton-system-baton-operator", "baton-system-baton-operator-nodes"]


def test_without_the_right_to_read_nodes_named_namespaces_need_no_cluster_wide_right() -> None:
    blind = rendered(FULL | {"watch.nodes": "false"})
    bound = [manifest["metadata"]["name"] for manifest in blind if manifest["kind"] == "ClusterRoleBinding"]
    assert [name for name in bound if "secrets" not in name] == []


@pytest.mark.parametrize(
    "values",
    [
        PINNED | {"images.worker": "r.example.com/worker:latest"},
        PINNED | {"images.gatway": "x"},
        PINNED | {"replicas": "0"},
        PINNED | {"watch.namespaces": "{}"},
        PINNED | {"watch.namespaces": "{Team_A}"},
        PINNED | {"fetch.ports": "{70000}"},
        WIDE | {"secretsPolicy.enabled": "false"},
        PINNED | {"fetch.cidrs": "{everywhere}"},
        PINNED | {"logLevel": "loud"},
        PINNED | {"logFormat": "xml"},
        PINNED | {"callsPerSecond": "0"},
        PINNED | {"podPolicy.priorityClasses": "{system-node-critical}"},
        PINNED | {"podPolicy.annotations": "{a b}"},
        PINNED | {"resources.limits.memory": "lots"},
        PINNED | {"fetch.env.A-B": "x"},
        PINNED | {"fetch.caBundle.configMapName": "Not_A_Name"},
        PINNED | {"fetch.volumes": "x"},
        PINNED | {"networkPolicy.workloads": "Never"},
        PINNED | {"networkPolicy.dnsPorts": "{}"},
        PINNED | {"securityContext.runAsUser": "0"},
        PINNED | {"securityContext.privileged": "true"},
        PINNED | {"monitoring.interval": "often"},
        PINNED | {"extraEnv[0].value": "nameless"},
        *(PINNED | JWT | {f"identity.{field}": value} for field, value in HALF_CONFIGURED),
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, str]) -> None:
    done = template(values)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_shared_streams_let_the_operator_list_everywhere_and_write_nowhere_else() -> None:
    manifests = rendered(FULL | {"watch.sharedStreams": "true"})
    roles = [
        manifest
        for manifest in manifests
        if manifest["kind"] == "ClusterRole" and manifest["metadata"]["name"].endswith("-streams")
    ]
    rules = [rule for role in roles for rule in role["rules"]]
    assert {verb for rule in rules for verb in rule["verbs"]} == {"list", "watch"}
    listed = {resource for rule in rules for resource in rule["resources"]}
    assert listed == {kind.plural for kind in (*WATCHED, *OPTIONAL, TENANTS)}
    assert not any(manifest["metadata"]["name"].endswith("-streams") for manifest in rendered(FULL))


def test_a_class_reaches_the_flags_and_the_rights_on_its_leases() -> None:
    manifests = rendered(FULL | {"operatorClass": "gold"})
    (deployment,) = (manifest for manifest in manifests if manifest["kind"] == "Deployment")
    settings = parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"])
    rules = [rule for manifest in manifests if manifest["kind"] == "Role" for rule in manifest["rules"]]
    leases = {name for rule in rules if "leases" in rule["resources"] for name in rule.get("resourceNames", [])}
    assert leases == {settings.lease, claim_name(settings.operator_class)}
    assert settings.operator_class == "gold"


def test_values_for_networks_ids_and_monitors_reach_the_flags_and_the_operators_own_objects() -> None:
    manifests = rendered(FULL | {f"securityContext.{name}": "null" for name in ("runAsUser", "runAsGroup", "fsGroup")})
    settings = parse(operator_arguments(manifests))
    assert settings.platform.network.dns_ports == (53, 5353)
    assert settings.platform.network.egress == ({"ports": [{"port": 15012}]},)
    assert settings.platform.monitoring_labels == (("release", "stack"),)
    assert settings.platform.pod_ids == PodIds(run_as_user=None, run_as_group=None, fs_group=None)
    assert (settings.platform.metrics_compat, settings.platform.llmd_labels) == ("vllm", True)
    assert settings.platform.inference_pool
    assert settings.platform.ledger == "stdout"
    batches = settings.platform.batches
    assert (batches.claim_name, batches.namespaces) == ("batches", ("team-a",))
    assert dict(batches.bounds) == {
        "batch-concurrency": 64,
        "batch-file-mib": 1_024,
        "batch-tenant-mib": 10_240,
        "batch-tenant-files": 1_000,
    }
    identity = settings.platform.identity
    assert (identity.namespaces, identity.header_secret) == (("team-a",), "front")
    assert identity.tokens is not None
    assert identity.tokens.jwks_url == "https://id.example.com/jwks.json"
    assert not settings.platform.route_timeouts
    assert (settings.log_format, settings.platform.json_logs) == ("json", True)
    found = {manifest["kind"]: manifest for manifest in manifests}
    pod = found["Deployment"]["spec"]["template"]
    assert pod["spec"]["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert violations(pod["spec"]) == []
    assert pod["spec"]["containers"][0]["env"][0] == {"name": "HTTPS_PROXY", "value": "http://proxy:3128"}
    assert (pod["metadata"]["labels"]["team"], pod["metadata"]["annotations"]["note"]) == ("a", "b")
    assert "affinity" in pod["spec"]
    for kind in ("PodMonitor", "PrometheusRule"):
        assert found[kind]["metadata"]["labels"]["release"] == "stack"
    assert found["PodMonitor"]["spec"]["podMetricsEndpoints"][0]["interval"] == "1m"
    dns = found["NetworkPolicy"]["spec"]["egress"][0]["ports"]
    assert {port["port"] for port in dns} == {53, 5353}
    assert found["Service"]["spec"]["ipFamilyPolicy"] == "PreferDualStack"


def test_labels_of_the_operators_pods_never_replace_those_that_select_them() -> None:
    manifests = rendered(PINNED | {"podLabels.app\\.kubernetes\\.io/name": "x"})
    (deployment,) = (manifest for manifest in manifests if manifest["kind"] == "Deployment")
    assert deployment["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] == "baton-operator"


def test_the_usual_name_of_pod_monitors_is_enough() -> None:
    manifests = rendered(PINNED | {"serviceMonitor.enabled": "true"})
    assert [manifest for manifest in manifests if manifest["kind"] == "PodMonitor"]
    assert parse(operator_arguments(manifests)).platform.monitors


def test_how_many_calls_the_operator_makes_is_a_value() -> None:
    for values, expected in ((FULL, 200.0), (FULL | {"callsPerSecond": "1000"}, 1000.0)):
        (deployment,) = (manifest for manifest in rendered(values) if manifest["kind"] == "Deployment")
        assert parse(deployment["spec"]["template"]["spec"]["containers"][0]["args"]).calls_per_s == expected


def test_the_settings_of_fetch_pods_reach_the_operator_and_their_absence_is_no_flag() -> None:
    def flags(values: dict[str, str]) -> list[str]:
        return operator_arguments(rendered(values))

    given = {
        "fetch.env.HTTPS_PROXY": "http://10.9.8.7:3128",
        "fetch.caBundle.configMapName": "corporate-ca",
        "fetch.podLabels.sidecar\\.istio\\.io/inject": "no",
        "fetch.podAnnotations.a": "$b",
    }
    fetch = parse([flag.replace("$$", "$") for flag in flags(FULL | given)]).platform.fetch
    assert fetch.env == (("HTTPS_PROXY", "http://10.9.8.7:3128"),)
    assert fetch.ca_config_map == "corporate-ca"
    assert fetch.pod_labels == (("sidecar.istio.io/inject", "no"),)
    assert fetch.pod_annotations == (("a", "$b"),)
    for absent in ({}, {"fetch.env": "null", "fetch.caBundle": "null", "fetch.podLabels": "null"}):
        assert not any(flag.startswith("--fetch-pod") for flag in flags(FULL | absent)), "as in charts before"


def test_a_deployments_condition_is_forgotten_with_it() -> None:
    key = Key("team", "chat")
    CONDITIONS.saw(key, DeploymentStatus(summary="Serving", conditions=(READY,)))
    exposed = metrics.text().decode()
    CONDITIONS.forget(key)
    assert 'baton_deployment_condition{deployment="chat",namespace="team",status="True",type="Ready"} 1.0' in exposed
    assert key not in CONDITIONS._seen


def test_passes_that_rightly_did_nothing_raise_no_alarm_about_failures() -> None:
    rules = next(manifest for manifest in rendered(FULL) if manifest["kind"] == "PrometheusRule")["spec"]["groups"]
    (rule,) = (alert for group in rules for alert in group["rules"] if alert.get("alert") == "BatonPassesFail")
    failed, all_of_them = (set(outcomes.split("|")) for outcomes in re.findall(r'outcome!~"([^"]*)"', rule["expr"]))
    assert failed == metrics.NO_FAILURES
    assert all_of_them == metrics.NO_FAILURES - {"Done"}, "nor do they hide that the other ones fail"
