"""The objects of a deployment: valid for Kubernetes, restricted, found by each other, stable where they have to be."""

from __future__ import annotations

import base64
import dataclasses
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from baton_control.errors import UnsupportedError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.manifest import read_manifest
from baton_gateway.settings import parse_settings
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import pool_facade, standing_objects, worker_deployment
from baton_operator.objects.metadata import selector_text
from baton_operator.objects.pods import worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_wire.keys import derived_key
from baton_wire.messages.values import POOL_ROLES, Role
from baton_worker.config import parse as parse_worker

Json = dict[str, Any]
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
PLATFORM = Platform(IMAGE, IMAGE.replace("worker", "gateway"), monitoring_namespace="monitoring")
OWNER = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
MASTERS = {"2026-11": b"m" * 32}
EXAMPLES = sorted(path for path in (Path(__file__).parents[3] / "examples").glob("*.yaml") if path.name != "tiny.yaml")
GPU = {"resource": "nvidia.com/gpu"}
FULL = {
    "model": {"source": "pvc://models/llama", "servedName": "tiny", "maxContextTokens": 512},
    "prefill": {
        "accelerator": GPU,
        "resources": {"cpu": "4", "memory": "16Gi"},
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-nic"}],
        "queue": "team-a",
        "priorityClassName": "serving",
        "schedulerName": "gang",
        "runtimeClassName": "nvidia",
        "placement": {
            "nodeSelector": {"example.com/pool": "gpu"},
            "tolerations": [{"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute"}],
            "topologyKey": "topology.kubernetes.io/zone",
        },
    },
    "decode": {"resources": {"cpu": "2500m", "memory": "8Gi"}},
    "gateway": {
        "replicas": 3,
        "service": {"type": "LoadBalancer", "port": 443},
        "tls": {"secretName": "cert"},
        "apiKeys": {"secretName": "clients"},
    },
    "imagePullSecrets": ["registry"],
    "podMetadata": {"labels": {"example.com/team": "a"}, "annotations": {"example.com/note": "b"}},
}


def on_cluster(**fields: object) -> LLMDeployment:
    return deployment(**{"model__source": "pvc://models/llama", **fields})


def everything(spec_of: LLMDeployment, platform: Platform = PLATFORM) -> list[Json]:
    objects = [*standing_objects(spec_of, platform, OWNER, MASTERS)]
    for role in POOL_ROLES:
        objects.append(worker_deployment(spec_of, worker_template(spec_of, role, platform), 2, OWNER))
        objects.append(pool_facade(spec_of, role, OWNER, 2))
    return [json.loads(json.dumps(manifest)) for manifest in objects]


def of_kind(objects: list[Json], kind: str, role: Role | None = None) -> list[Json]:
    labelled = [manifest for manifest in objects if manifest["kind"] == kind]
    return [
        manifest
        for manifest in labelled
        if role is None or manifest["metadata"]["labels"].get("baton.dev/role") == role
    ]


def pod_of(objects: list[Json], role: Role) -> Json:
    template: Json = of_kind(objects, "Deployment", role)[0]["spec"]["template"]
    return template


CASES = [read_manifest(path) for path in EXAMPLES] + [deployment(**FULL), deployment(model__source="file:///models/a")]
NAMES = [*(path.name for path in EXAMPLES), "full", "in-image"]


@pytest.mark.parametrize("given", CASES, ids=NAMES)
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(given: LLMDeployment, version: str) -> None:
    for manifest in everything(given):
        if manifest["kind"] != "LLMPool":
            kubernetes_validate.validate(manifest, version, strict=True)


def test_the_validator_knows_unknown_fields_and_wrong_types() -> None:
    objects = everything(on_cluster())
    for path, value in ((("replicas",), "two"), (("templat",), {})):
        bad = of_kind(objects, "Deployment", Role.DECODE)[0]
        bad["spec"][path[0]] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(bad, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("given", CASES, ids=NAMES)
def test_every_pod_is_restricted_and_has_no_api_token(given: LLMDeployment) -> None:
    pods = [manifest["spec"]["template"]["spec"] for manifest in of_kind(everything(given), "Deployment")]
    assert len(pods) == 3
    for pod in pods:
        assert violations(pod) == []
        assert pod["automountServiceAccountToken"] is False
        assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in pod["containers"])
        assert not any("valueFrom" in entry for container in pod["containers"] for entry in container["env"])


@pytest.mark.parametrize(
    ("change", "violation"),
    [
        ({"hostNetwork": True}, "hostNetwork"),
        ({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, "volumes.x"),
        ({"securityContext": {}}, "gateway.runAsNonRoot"),
        ({"securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "securityContext.runAsUser"),
        ({"containers": [{"name": "c", "securityContext": {"privileged": True}}]}, "c.privileged"),
        ({"containers": [{"name": "c"}]}, "c.capabilities"),
    ],
)
def test_the_evaluator_finds_what_is_not_restricted(change: Json, violation: str) -> None:
    pod = pod_of(everything(on_cluster()), Role.GATEWAY)["spec"]
    assert violation in violations(pod | change)


@pytest.mark.parametrize("given", CASES, ids=NAMES)
def test_everything_belongs_to_the_deployment_alone(given: LLMDeployment) -> None:
    for manifest in everything(given):
        [reference] = manifest["metadata"]["ownerReferences"]
        assert (reference["kind"], reference["uid"], reference["controller"]) == ("LLMDeployment", OWNER.uid, True)
        assert manifest["metadata"]["namespace"] == given.metadata.namespace
        assert len(manifest["metadata"]["name"]) <= 63
    identities = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in everything(given)]
    assert len(set(identities)) == len(identities)


def matches(selector: Json, pod: Json) -> bool:
    wanted: dict[str, str] = selector["matchLabels"]
    have: dict[str, str] = pod["metadata"]["labels"]
    return wanted.items() <= have.items()


def test_selectors_select_the_pods_of_their_role_and_no_others() -> None:
    objects = everything(on_cluster())
    pods = {role: pod_of(objects, role) for role in Role}
    for manifest in objects:
        if manifest["kind"] == "Service":
            selector = {"matchLabels": manifest["spec"]["selector"]}
        elif manifest["kind"] in ("Deployment", "PodDisruptionBudget"):
            selector = manifest["spec"]["selector"]
        else:
            continue
        role = manifest["metadata"]["labels"]["baton.dev/role"]
        assert [other for other, pod in pods.items() if matches(selector, pod)] == [role]
    assert selector_text(on_cluster(), Role.DECODE) == "baton.dev/deployment=chat,baton.dev/role=decode"


def edges(objects: list[Json]) -> set[tuple[str, str, int]]:
    """The connections that policies allow inside the deployment and with other namespaces: (from, to, port)."""
    pods = {role: pod_of(objects, role) for role in Role}
    allowed: dict[str, set[tuple[str, str, int]]] = {"ingress": set(), "egress": set()}
    for policy in of_kind(objects, "NetworkPolicy"):
        subjects = [role for role, pod in pods.items() if matches(policy["spec"]["podSelector"], pod)]
        for direction, side in (("ingress", "from"), ("egress", "to")):
            for rule in policy["spec"].get(direction, []):
                for peer in rule.get(side, [{}]):
                    names = peers_of(peer, pods)
                    for subject in subjects:
                        for name in names:
                            pair = (name, subject) if direction == "ingress" else (subject, name)
                            allowed[direction] |= {(*pair, port["port"]) for port in rule["ports"]}
    inside = {
        edge for edge in allowed["ingress"] | allowed["egress"] if edge[0] in list(Role) and edge[1] in list(Role)
    }
    both = allowed["ingress"] & allowed["egress"]
    return (both & inside) | ((allowed["ingress"] | allowed["egress"]) - inside)


def peers_of(peer: Json, pods: dict[Role, Json]) -> list[str]:
    if not peer:
        return ["anybody"]
    if peer == {"podSelector": {}}:
        return ["namespace"]
    if "namespaceSelector" in peer:
        return [str(peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"])]
    return [role for role, pod in pods.items() if matches(peer["podSelector"], pod)]


@pytest.mark.parametrize(
    ("gateway", "clients"),
    [
        ({}, {"namespace", "monitoring"}),
        ({"openAccess": True}, {"anybody"}),
        ({"apiKeys": {"secretName": "clients"}}, {"anybody"}),
    ],
)
def test_the_policies_allow_the_listed_edges_and_no_others(gateway: Json, clients: set[str]) -> None:
    dns = {(str(role), "anybody", 53) for role in Role}
    assert edges(everything(on_cluster(gateway=gateway))) == dns | {
        *((client, "gateway", 8000) for client in clients),
        ("gateway", "prefill", 8000),
        ("gateway", "decode", 8000),
        ("prefill", "decode", 8001),
        ("gateway", "baton-system", 8443),
        ("monitoring", "prefill", 8000),
        ("monitoring", "decode", 8000),
    }


def test_a_gateway_reads_the_keys_of_its_clients_from_the_secret_alone() -> None:
    pod = pod_of(everything(on_cluster(gateway={"apiKeys": {"secretName": "clients"}})), Role.GATEWAY)["spec"]
    [container] = pod["containers"]
    settings = parse_settings([*container["command"], *container["args"]][3:])
    [mount] = [mount_of for mount_of in container["volumeMounts"] if mount_of["mountPath"] == str(settings.api_keys)]
    [volume] = [volume_of for volume_of in pod["volumes"] if volume_of["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "clients", "defaultMode": 0o440}
    assert mount["readOnly"] is True
    bare = pod_of(everything(on_cluster()), Role.GATEWAY)["spec"]["containers"][0]
    assert parse_settings([*bare["command"], *bare["args"]][3:]).api_keys is None


@pytest.mark.parametrize("role", POOL_ROLES)
def test_a_worker_reads_its_own_command_line_and_listens_where_the_services_point(role: Role) -> None:
    objects = everything(deployment(**FULL))
    [container] = pod_of(objects, role)["spec"]["containers"]
    argv = [*container["command"], *container["args"]]
    assert argv[:3] == ["python", "-m", f"baton_{role}_worker"]
    config = parse_worker(role, argv[3:])
    assert (config.listen.port, str(config.keys), str(config.model)) == (8000, "/etc/baton/keys", "/model")
    [service] = of_kind(objects, "Service", role)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert {port["targetPort"] for port in service["spec"]["ports"]} == {port["name"] for port in container["ports"]}
    if role is Role.DECODE:
        assert config.pair_listen is not None
        assert (config.pair_listen.host, config.pair_listen.port, config.threads) == ("::", 8001, 2)


def test_the_gateway_finds_the_pools_by_names_that_end_in_a_dot() -> None:
    objects = everything(on_cluster())
    [container] = pod_of(objects, Role.GATEWAY)["spec"]["containers"]
    for role in POOL_ROLES:
        [service] = of_kind(objects, "Service", role)
        address = f"dns:{service['metadata']['name']}.default.svc.cluster.local.:8000"
        assert f"--{role}-discovery={address}" in container["command"]


def test_prefill_workers_find_the_port_at_which_decode_workers_listen_for_them() -> None:
    objects = everything(on_cluster())
    [prefill] = pod_of(objects, Role.PREFILL)["spec"]["containers"]
    [decode] = pod_of(objects, Role.DECODE)["spec"]["containers"]
    [pair] = [port["containerPort"] for port in decode["ports"] if port["name"] == "pair"]
    [service] = of_kind(objects, "Service", Role.DECODE)
    address = f"dns:{service['metadata']['name']}.default.svc.cluster.local.:{pair}"
    assert f"--decode-discovery={address}" in prefill["command"]


def test_a_process_gets_longer_to_stop_than_the_longest_request_takes() -> None:
    objects = everything(on_cluster(gateway__limits={"maxRequestDuration": "15m"}))
    for role in Role:
        pod = pod_of(objects, role)["spec"]
        [drain] = [text for text in pod["containers"][0]["command"] if text.startswith("--drain-s=")]
        assert pod["terminationGracePeriodSeconds"] > float(drain.partition("=")[2]) > 900


def test_keys_are_mounted_so_that_nobody_else_reads_them_and_rotate_without_a_restart() -> None:
    on_pods = on_cluster()
    for role in Role:
        pod = pod_of(everything(on_pods), role)["spec"]
        [volume] = [volume_of for volume_of in pod["volumes"] if volume_of["name"] == "keys"]
        assert volume["secret"] == {"secretName": "chat-keys", "defaultMode": 0o440}
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]
    before = standing_objects(on_pods, PLATFORM, OWNER, MASTERS)
    after = standing_objects(on_pods, PLATFORM, OWNER, {**MASTERS, "2026-12": b"n" * 32})
    changed = [new["kind"] for old, new in zip(before, after, strict=True) if old != new]
    assert changed == ["Secret"]


def test_a_key_belongs_to_one_deployment_and_needs_a_long_master() -> None:
    keys = {derived_key(master, uid) for master in (b"a" * 32, b"b" * 32) for uid in ("1", "2")}
    assert len(keys) == 4
    [secret] = of_kind(everything(on_cluster()), "Secret")
    assert base64.b64decode(secret["data"]["2026-11"]).decode() == derived_key(MASTERS["2026-11"], OWNER.uid)
    with pytest.raises(ValueError, match="must be at least 32"):
        derived_key(b"short", "1")
    with pytest.raises(ValueError, match="no master key"):
        standing_objects(on_cluster(), PLATFORM, OWNER, {})


def test_manifest_text_is_not_expanded_as_a_variable() -> None:
    [container] = pod_of(everything(deployment(model__source="file:///$(HOME)/$x")), Role.DECODE)["spec"]["containers"]
    assert "--model=/$$(HOME)/$$x" in container["command"]


CHANGES: list[tuple[Json, set[Role]]] = [
    ({"prefill__replicas": {"min": 2, "max": 9}}, set()),
    ({"rollout": {"paused": True}}, set()),
    ({"slo__ttft": {"target": "1s"}}, set()),
    ({"gateway__replicas": 4}, set()),
    ({"prefill__queue": "other"}, {Role.PREFILL}),
    ({"decode__resources": {"memory": "1Gi"}}, {Role.DECODE}),
    ({"podMetadata__labels": {"a": "b"}}, {Role.PREFILL, Role.DECODE}),
    ({"imagePullSecrets": ["a"]}, {Role.PREFILL, Role.DECODE}),
    ({"model__source": "pvc://models/other"}, {Role.PREFILL, Role.DECODE}),
]


@pytest.mark.parametrize(("change", "rolled"), CHANGES)
def test_exactly_a_change_of_the_template_makes_a_new_deployment(change: Json, rolled: set[Role]) -> None:
    before, after = on_cluster(), on_cluster(**change)
    for role in POOL_ROLES:
        old, new = (worker_template(spec_of, role, PLATFORM) for spec_of in (before, after))
        assert (old.spec.revision.template != new.spec.revision.template) == (role in rolled)
        assert (old.pod != new.pod) == (role in rolled)
        name = worker_deployment(after, new, 1, OWNER)["metadata"]
        assert isinstance(name, dict)
        assert name["name"] == f"chat-{role}-{new.spec.revision.template}"
        assert f"--template-hash={new.spec.revision.template}" in new.spec.argv


def test_another_image_is_another_template() -> None:
    other = dataclasses.replace(PLATFORM, worker_image=IMAGE.replace("a" * 64, "b" * 64))
    revisions = {
        worker_template(on_cluster(), Role.DECODE, platform).spec.revision.template for platform in (PLATFORM, other)
    }
    assert len(revisions) == 2


@pytest.mark.parametrize("image", ["worker:latest", "worker", "worker@sha256:abc", "-x@sha256:" + "a" * 64, ""])
def test_an_image_without_a_digest_is_refused(image: str) -> None:
    with pytest.raises(ValueError, match="must be IMAGE@sha256:DIGEST"):
        Platform(image, IMAGE)


def test_a_certificate_is_mounted_by_name_and_probes_and_clients_speak_https() -> None:
    objects = everything(on_cluster(gateway={"tls": {"secretName": "cert"}}))
    pod = pod_of(objects, Role.GATEWAY)["spec"]
    container = pod["containers"][0]
    assert {"name": "tls", "secret": {"secretName": "cert", "defaultMode": 0o440}} in pod["volumes"]
    assert {"name": "tls", "mountPath": "/etc/baton/tls", "readOnly": True} in container["volumeMounts"]
    assert "--tls=/etc/baton/tls" in container["command"]
    assert {container[f"{name}Probe"]["httpGet"]["scheme"] for name in ("startup", "liveness", "readiness")} == {
        "HTTPS"
    }
    assert of_kind(objects, "Service", Role.GATEWAY)[0]["spec"]["ports"][0]["appProtocol"] == "https"
    plain = json.dumps(everything(on_cluster()))
    assert not any(word in plain for word in ("tls", "HTTPS", "https"))
    assert "cert" not in json.dumps([pod_of(objects, role) for role in POOL_ROLES])


def test_our_labels_win_and_a_facade_leaves_replicas_to_their_owner() -> None:
    labels = pod_of(everything(deployment(**FULL)), Role.PREFILL)["metadata"]["labels"]
    assert labels["example.com/team"] == "a"
    assert labels["kueue.x-k8s.io/queue-name"] == "team-a"
    assert pool_facade(on_cluster(), Role.DECODE, OWNER)["spec"] == {"deployment": "chat", "role": "decode"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"model__source": "file://relative"}, "spec.model.source"),
        ({"model__source": "random://relative/config.json"}, "spec.model.source"),
        ({"autoscaling__flips": True}, "spec.autoscaling.flips"),
    ],
)
def test_what_pods_cannot_do_yet_is_refused_by_field(fields: Json, path: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        everything(on_cluster(**fields))
    assert caught.value.problem.path == path
