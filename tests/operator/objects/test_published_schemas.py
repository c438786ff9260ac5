"""Everything that can be rendered, held against the published schemas of the Kubernetes versions that are served."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import kubernetes_validate
import pytest

from baton_control.spec.allowed import fields_of
from baton_control.spec.base_model import Model
from baton_control.spec.gateway_fields import GatewayAutoscalingSpec, GatewaySpec, ServiceSpec
from baton_control.spec.placing import NodesSpec, PlacementSpec
from baton_control.spec.pools import PoolSpec
from baton_control.spec.served_model import CacheSpec, FetchSpec
from baton_operator.kube.kinds import (
    DEPLOYMENTS,
    INFERENCE_POOLS,
    MONITORS,
    OPTIONAL,
    PODS,
    POOLS,
    ROUTES,
    RULES,
    SECRETS,
    WATCHED,
    resource_of,
)
from baton_operator.objects.cluster import Owner
from baton_operator.objects.desired import pool_facade, standing_objects, worker_deployment
from baton_operator.objects.link_keys import key_marker
from baton_operator.objects.pods import worker_template
from baton_operator.passes import template_records
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_testing.kube.world import MASTERS, PLATFORM
from baton_wire.messages.values import POOL_ROLES

Json = dict[str, Any]
OWNER = Owner("6f1c2f0e-8f57-4f7a-9a55-1d3b1c0f7a10")
WATCHING = dataclasses.replace(PLATFORM, monitors=True, alerts=True)
PLACEMENT = {
    "nodeSelector": {"example.com/pool": "gpu"},
    "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "nodeAffinity": [
        {"matchExpressions": [{"key": "example.com/gpu", "values": ["h200"]}, {"key": "old", "operator": "Exists"}]},
        {"weight": 9, "matchExpressions": [{"key": "mem", "operator": "Gt", "values": ["80"]}]},
    ],
    "podAffinity": [
        {"matchLabels": {"baton.dev/role": "decode"}, "topologyKey": "example.com/rack"},
        {"matchLabels": {"app": "cache"}, "topologyKey": "example.com/rack", "weight": 5},
    ],
    "podAntiAffinity": [
        {"matchLabels": {"app": "batch"}, "topologyKey": "kubernetes.io/hostname"},
        {"matchLabels": {"app": "noisy"}, "topologyKey": "kubernetes.io/hostname", "weight": 100},
    ],
    "topologyKey": "topology.kubernetes.io/zone",
    "spread": "Required",
}  # fmt: skip
EVERY = {
    "model": {
        "source": "hf://org/model@" + "c" * 40,
        "servedName": "tiny",
        "maxContextTokens": 512,
        "credentialsSecret": "hub",
        "cache": {"type": "Shared", "size": "200Gi", "storageClassName": "shared", "accessMode": "ReadWriteMany"},
        "fetch": {
            "resources": {"cpu": "2", "memory": "8Gi"},
            "placement": {name: PLACEMENT[name] for name in ("nodeSelector", "tolerations")},
            "serviceAccountAnnotations": {"iam.example.com/role": "reader"},
        },
    },
    "prefill": {"tensorParallel": 2},
    "decode": {
        "replicas": {"min": 1, "max": 4},
        "tensorParallel": 1,
        "accelerator": {"resource": "nvidia.com/gpu", "costPerHour": 2.5, "with": {"rdma/ib": 1}},
        "engine": {"maxSequences": 32},
        "placement": PLACEMENT,
        "resources": {
            "requests": {"cpu": 4, "memory": "12Gi", "ephemeral-storage": "1Gi"},
            "limits": {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "2Gi"},
        },
        "priorityClassName": "serving",
        "schedulerName": "gang",
        "runtimeClassName": "nvidia",
        "resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "rdma-nic"}],
        "queue": "team-a",
        "env": [{"name": "UCX_TLS", "value": "rc"}],
        "arguments": [{"name": "landing-bytes", "value": "1073741824"}],
        "volumes": [
            {"name": "ca", "mountPath": "/mnt/ca", "configMapName": "ca"},
            {"name": "data", "mountPath": "/mnt/data", "claimName": "data", "readOnly": False},
        ],
        "sharedMemory": "8Gi",
        "hugepages": {"pageSize": "1Gi", "size": "2Gi"},
        "serviceAccountAnnotations": {"iam.example.com/role": "reader"},
    },
    "gateway": {
        "replicas": 1,
        "autoscaling": {"min": 2, "max": 8, "targetCpu": 60},
        "processes": 2,
        "service": {
            "type": "LoadBalancer",
            "port": 8080,
            "annotations": {"example.com/lb": "nlb"},
            "loadBalancerClass": "example.com/internal",
            "loadBalancerSourceRanges": ["192.0.2.0/24", "2001:db8::/32"],
            "externalTrafficPolicy": "Local",
            "ipFamilyPolicy": "RequireDualStack",
            "ipFamilies": ["IPv6", "IPv4"],
        },
        "tls": {"secretName": "cert"},
        "apiKeys": {"secretName": "clients"},
        "tenants": True,
        "route": {"parent": "edge", "parentNamespace": "infra", "hostnames": ["chat.example.com"]},
        "openAccess": False,
        "allowedOrigins": ["https://chat.example"],
        "unknownFields": "Ignore",
        "limits": {"maxQueued": 9},
        "resources": {"cpu": "2", "memory": "2Gi"},
        "placement": PLACEMENT,
        "priorityClassName": "serving",
    },
    "imagePullSecrets": ["registry"],
    "podMetadata": {"labels": {"example.com/team": "a"}, "annotations": {"example.com/note": "b"}},
}
"""Each field that reaches an object, so that everything that can be rendered is held against the published schemas."""


def everything() -> list[Json]:
    every = deployment(**EVERY)
    standing = standing_objects(every, WATCHING, OWNER, MASTERS)
    secret = next(manifest for manifest in standing if manifest["kind"] == SECRETS.kind)
    record = template_records.current_record(every, WATCHING, "", ())
    objects = [
        *standing,
        key_marker(secret, "uid-2"),
        template_records.record_manifest(record, 1, every, OWNER, good="{}"),
    ]
    for role in POOL_ROLES:
        objects.append(worker_deployment(every, worker_template(every, role, WATCHING), 2, OWNER))
        objects.append(pool_facade(every, role, OWNER, 2))
    return [json.loads(json.dumps(manifest)) for manifest in objects]


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_with_every_field_is_valid_for_kubernetes(version: str) -> None:
    held = [manifest for manifest in everything() if resource_of(manifest) not in (POOLS, ROUTES, MONITORS, RULES)]
    assert len(held) > 20
    for manifest in held:
        kubernetes_validate.validate(manifest, version, strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**manifest, "sepc": {}}, version, strict=True)


def test_with_every_field_pods_stay_restricted() -> None:
    pods = [
        manifest["spec"]["template"]["spec"] for manifest in everything() if manifest["kind"] in ("Deployment", "Job")
    ]
    assert len(pods) == 4
    assert [violations(pod) for pod in pods] == [[]] * 4


EXCLUDED = {"claimName"}
"""Fields that exclude others of EVERY; tests of their own render them."""


@pytest.mark.parametrize(
    ("at", "model"),
    [
        (("decode",), PoolSpec),
        (("decode", "placement"), PlacementSpec),
        (("gateway",), GatewaySpec),
        (("gateway", "autoscaling"), GatewayAutoscalingSpec),
        (("gateway", "service"), ServiceSpec),
        (("gateway", "placement"), PlacementSpec),
        (("model", "fetch"), FetchSpec),
        (("model", "fetch", "placement"), NodesSpec),
        (("model", "cache"), CacheSpec),
    ],
)
def test_a_field_that_is_added_is_validated_too(at: tuple[str, ...], model: type[Model]) -> None:
    value: Any = EVERY
    for name in at:
        value = value[name]
    assert set(value) == set(fields_of(model)) - EXCLUDED, "give the new field a value in EVERY"


def test_every_kind_that_a_deployment_can_ask_for_is_among_them() -> None:
    """But for an InferencePool, whose schema no package has."""
    others = {DEPLOYMENTS, PODS, INFERENCE_POOLS}
    assert {resource_of(manifest) for manifest in everything()} == {*WATCHED, *OPTIONAL, SECRETS} - others
