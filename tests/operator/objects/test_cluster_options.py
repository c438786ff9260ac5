"""Options for clusters of others: devices, limits, spread, Services, routes and pull secrets, as they are rendered."""

from __future__ import annotations

import dataclasses
from typing import Any

import kubernetes_validate
import pytest

from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import standing_objects
from baton_operator.objects.pods import gateway_template, worker_template
from baton_operator.passes.device_notes import device_notes
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.world import MASTERS
from baton_wire.messages.values import POOL_ROLES, Role

Json = dict[str, Any]
DIGEST = "registry.example.com/baton@sha256:"
PLATFORM = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64)
PVC = {"model__source": "pvc://models/a"}
HUB: Json = {"model__source": "hf://org/model@" + "a" * 40}


def pod_of(role: Role, **fields: Any) -> Json:
    spec_of = deployment(**{**PVC, **fields})
    is_gateway = role is Role.GATEWAY
    pod_template: Any = (
        gateway_template(spec_of, PLATFORM) if is_gateway else worker_template(spec_of, role, PLATFORM).pod
    )
    pod: Json = pod_template
    return pod


def build_deployment(kind: str, name: str, **fields: Any) -> Json:
    objects: Any = standing_objects(deployment(**{**PVC, **fields}), PLATFORM, Owner("u"), MASTERS)
    match: Json = next(
        manifest for manifest in objects if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    )
    return match


@pytest.mark.parametrize("role", [*POOL_ROLES, Role.GATEWAY])
def test_the_pods_of_each_template_are_spread_without_those_of_another(role: Role) -> None:
    pod = pod_of(role, prefill__placement={"spread": "Required"})
    (constraint,) = pod["spec"]["topologySpreadConstraints"]
    (key,) = constraint["matchLabelKeys"]
    assert key not in constraint["labelSelector"]["matchLabels"], "a server refuses a key in both"
    assert key == "pod-template-hash" if role is Role.GATEWAY else key in pod["metadata"]["labels"]


def test_a_claimed_accelerator_is_computed_on_and_no_second_one_is_asked_for() -> None:
    claims = [{"name": name, "resourceClaimTemplateName": name} for name in ("gpu", "nic")]
    pod = pod_of(Role.DECODE, decode__resourceClaims=claims, decode__accelerator={"claim": "gpu"})
    (container,) = pod["spec"]["containers"]
    assert "--device=cuda" in container["command"]
    assert container["resources"] == {"claims": [{"name": "gpu"}, {"name": "nic"}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **pod["metadata"]}, "spec": pod["spec"]}
    for version in KUBERNETES:
        kubernetes_validate.validate(body, version, strict=True)


def test_network_devices_are_asked_for_with_the_accelerator() -> None:
    accelerator = {"resource": "nvidia.com/mig-1g.10gb", "with": {"rdma/ib": 1, "vpc.amazonaws.com/efa": 4}}
    (container,) = pod_of(Role.DECODE, decode__accelerator=accelerator)["spec"]["containers"]
    expected = {"nvidia.com/mig-1g.10gb": "1", "rdma/ib": "1", "vpc.amazonaws.com/efa": "4"}
    assert container["resources"] == {"requests": expected, "limits": expected}


def test_limits_and_storage_are_rendered_as_kubernetes_completes_them() -> None:
    given = {"limits": {"cpu": 2, "memory": "8G", "ephemeral-storage": "1.5Gi"}, "requests": {"cpu": "0.5"}}
    (container,) = pod_of(Role.DECODE, decode__resources=given)["spec"]["containers"]
    same = {"memory": "8G", "ephemeral-storage": "1536Mi"}
    assert container["resources"] == {"requests": {"cpu": "500m", **same}, "limits": {"cpu": "2", **same}}
    gateway = pod_of(Role.GATEWAY, gateway__resources={"limits": {"cpu": 2}})["spec"]["containers"][0]["resources"]
    assert gateway == {"requests": {"cpu": "2", "memory": "512Mi"}, "limits": {"cpu": "2", "memory": "4Gi"}}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"decode__resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]}, "compute on CPUs"),
        ({"prefill__accelerator": {"resource": "amd.com/gpu"}}, "were never run on amd.com/gpu"),
        ({"prefill__accelerator": {"resource": "nvidia.com/gpu"}}, None),
        ({}, None),
    ],
)
def test_a_device_that_may_surprise_is_noted(fields: Json, words: str | None) -> None:
    notes = list(device_notes(deployment(**fields)))
    assert len(notes) == (0 if words is None else 1)
    assert words is None or words in notes[0]


def test_a_service_has_the_options_that_are_given_and_as_many_families_as_the_cluster() -> None:
    plain = build_deployment("Service", "chat-gateway")["spec"]
    assert (plain["ipFamilyPolicy"], "ipFamilies" in plain) == ("PreferDualStack", False)
    options = {
        "loadBalancerClass": "example.com/internal",
        "loadBalancerSourceRanges": ["192.0.2.0/24"],
        "externalTrafficPolicy": "Local",
        "ipFamilyPolicy": "RequireDualStack",
        "ipFamilies": ["IPv6", "IPv4"],
    }
    given = {"gateway__openAccess": True, "gateway__service": {"type": "LoadBalancer", **options}}
    service = build_deployment("Service", "chat-gateway", **given)
    assert {name: service["spec"][name] for name in options} == options
    for version in KUBERNETES:
        kubernetes_validate.validate(service, version, strict=True)


@pytest.mark.parametrize(
    ("route", "parents"),
    [
        ({"parent": "edge"}, [{"name": "edge"}]),
        ({"parent": "edge", "parentNamespace": "a"}, [{"name": "edge", "namespace": "a"}]),
        (
            {"parentRefs": [{"name": "edge", "sectionName": "https", "port": 443}, {"name": "b", "namespace": "c"}]},
            [{"name": "edge", "sectionName": "https", "port": 443}, {"name": "b", "namespace": "c"}],
        ),
    ],
)
def test_a_route_has_the_gateways_that_are_given(route: Json, parents: list[Json]) -> None:
    made = build_deployment("HTTPRoute", "chat-gateway", gateway__openAccess=True, gateway__route=route)
    assert made["spec"]["parentRefs"] == parents


def test_the_installations_pull_secrets_are_on_every_account_and_in_no_template() -> None:
    platform = dataclasses.replace(PLATFORM, pull_secrets=("mirror", "backup"))
    asked = deployment(**HUB)
    objects: Any = standing_objects(asked, platform, Owner("u"), MASTERS)
    accounts = [manifest for manifest in objects if manifest["kind"] == "ServiceAccount"]
    assert len(accounts) == 4, "prefill, decode, gateway and the fetch Job"
    assert [account["imagePullSecrets"] for account in accounts] == [[{"name": "mirror"}, {"name": "backup"}]] * 4
    assert gateway_template(asked, platform) == gateway_template(asked, PLATFORM)
    own = pod_of(Role.DECODE, pullSecrets=[{"name": "own"}])
    assert own == pod_of(Role.DECODE, imagePullSecrets=["own"])
    assert own["spec"]["imagePullSecrets"] == [{"name": "own"}]
    with pytest.raises(ValueError, match="workload pull secrets: 'a b'"):
        dataclasses.replace(PLATFORM, pull_secrets=("a b",))
