"""Settings of Pods that tenants may use: listed by the installer, and everything else refused by its field."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from baton_control.errors import NotAllowedError
from baton_control.spec.manifest import read_manifest
from baton_operator.kube.custom_resources import CustomResources
from baton_operator.kube.kinds import DEPLOYMENTS, WORKERS
from baton_operator.objects.cluster import Platform
from baton_operator.objects.pod_policy import PodPolicy, parse_pod_policy
from baton_operator.passes.reconcile import Installation
from baton_operator.runtime import Runtime
from baton_testing.kube import own_kinds
from baton_testing.kube.clock import wall
from baton_testing.kube.cluster import moment
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.manifests import deployment, manifest
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
INJECTORS = (
    "dapr.io/sidecar-image",
    "config.linkerd.io/proxy-image",
    "k8s.v1.cni.cncf.io/networks",
    "instrumentation.opentelemetry.io/inject-python",
    "vault.hashicorp.com/agent-inject",
    "sidecar.istio.io/inject",
    "container.apparmor.security.beta.kubernetes.io/worker",
    "note",
)
NEAR = {"matchExpressions": [{"key": "example.com/rack", "operator": "Exists"}]}
REFUSED: list[tuple[dict[str, Any], str, PodPolicy]] = [
    *(
        ({"podMetadata__annotations": {key: "x"}}, f"spec.podMetadata.annotations.{key}", PodPolicy())
        for key in INJECTORS
    ),
    ({"podMetadata__annotations": {"x.karpenter.sh/a": "b"}}, "spec.podMetadata.annotations.x", PodPolicy()),
    ({"podMetadata__annotations": {"example.com/b": "c"}}, "spec.podMetadata.annotations",
     PodPolicy(annotations=("example.com/a",))),
    ({"podMetadata__labels": {"azure.workload.identity/use": "true"}}, "spec.podMetadata.labels", PodPolicy()),
    ({"prefill__priorityClassName": "high"}, "spec.prefill.priorityClassName: 'high'", PodPolicy()),
    ({"decode__priorityClassName": "system-node-critical"}, "spec.decode.priorityClassName", PodPolicy()),
    ({"decode__priorityClassName": "system-node-critical"}, "the system's own", PodPolicy(priority_classes=("*",))),
    ({"decode__schedulerName": "mine"}, "spec.decode.schedulerName: 'mine'", PodPolicy()),
    ({"decode__runtimeClassName": "runc-root"}, "spec.decode.runtimeClassName: 'runc-root'", PodPolicy()),
    (
        {"prefill__placement": {"tolerations": [{"key": "nvidia.com/gpu"}, {"key": "node-role.kubernetes.io/master"}]}},
        "spec.prefill.placement.tolerations[1].key: 'node-role.kubernetes.io/master'",
        PodPolicy(),
    ),
    ({"decode__accelerator": {"resource": "nvidia.com/gpu", "with": {"devices.kubevirt.io/kvm": 1}}},
     "spec.decode.accelerator.with.devices.kubevirt.io/kvm: not allowed by this installation", PodPolicy()),
    ({"decode__accelerator": {"resource": "nvidia.com/gpu", "with": {"rdma/ib": 1}}}, "podPolicy.extendedResources",
     PodPolicy(extended_resources=())),
    ({"decode__arguments": [{"name": "landing-bytes"}]}, "spec.decode.arguments[0].name: 'landing-bytes'", PodPolicy()),
    ({"prefill__serviceAccountAnnotations": {"iam.example.com/role": "r"}},
     "spec.prefill.serviceAccountAnnotations.iam.example.com/role", PodPolicy()),
    ({"gateway__placement": {"nodeSelector": {"infra": "x"}}}, "spec.gateway.placement.nodeSelector.infra",
     PodPolicy(node_labels=("example.com",))),
    ({"model__source": "hf://org/model@" + "a" * 40, "model__fetch": {"placement": {"nodeSelector": {"infra": "x"}}}},
     "spec.model.fetch.placement.nodeSelector.infra", PodPolicy(node_labels=())),
    ({"decode__placement": {"topologyKey": "zone"}}, "spec.decode.placement.topologyKey", PodPolicy(node_labels=())),
    ({"decode__placement": {"nodeAffinity": [NEAR]}}, "spec.decode.placement.nodeAffinity[0].matchExpressions[0].key",
     PodPolicy(node_labels=("zone",))),
    ({"decode__placement": {"podAntiAffinity": [{"matchLabels": {"a": "b"}, "topologyKey": "rack"}]}},
     "spec.decode.placement.podAntiAffinity[0].topologyKey: 'rack'", PodPolicy(node_labels=("zone",))),
]  # fmt: skip
TAKEN: list[tuple[dict[str, Any], PodPolicy]] = [
    ({"decode__accelerator": {"resource": "nvidia.com/gpu", "with": {"rdma/ib": 1, "vpc.amazonaws.com/efa": 4}}},
     PodPolicy()),
    ({"podMetadata__annotations": {"prometheus.io/scrape": "true"}}, PodPolicy()),
    ({"podMetadata__annotations": {"karpenter.sh/do-not-disrupt": "true"}}, PodPolicy()),
    ({"podMetadata__annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}}, PodPolicy()),
    ({"podMetadata__annotations": {"example.com/a": "b", "note": "c"}}, PodPolicy(annotations=("example.com", "note"))),
    ({"podMetadata__annotations": {"dapr.io/enabled": "true"}}, PodPolicy(annotations=("*",))),
    ({"podMetadata__labels": {"team": "a"}}, PodPolicy()),
    ({"podMetadata__labels": {"sidecar.istio.io/inject": "false", "istio.io/dataplane-mode": "none"}}, PodPolicy()),
    ({"podMetadata__labels": {"example.com/team": "a"}}, PodPolicy(labels=("example.com/team",))),
    ({"decode__priorityClassName": "high"}, PodPolicy(priority_classes=("high",))),
    ({"decode__schedulerName": "default-scheduler"}, PodPolicy()),
    ({"decode__runtimeClassName": "nvidia"}, PodPolicy(runtime_classes=("*",))),
    ({"decode__placement": {"tolerations": [{"key": "nvidia.com/gpu"}]}}, PodPolicy()),
    ({"decode__arguments": [{"name": "landing-bytes"}]}, PodPolicy(worker_arguments=("landing-bytes",))),
    ({"decode__placement": {"nodeAffinity": [NEAR], "topologyKey": "example.com/zone"}}, PodPolicy()),
    ({"decode__placement": {"nodeAffinity": [NEAR]}}, PodPolicy(node_labels=("example.com",))),
    ({"decode__serviceAccountAnnotations": {"iam.example.com/role": "r"}}, PodPolicy(account_annotations=("*",))),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "message", "policy"), REFUSED, ids=str)
def test_what_is_not_listed_is_refused_by_its_field(fields: dict[str, Any], message: str, policy: PodPolicy) -> None:
    with pytest.raises(NotAllowedError) as caught:
        policy.check(deployment(**fields))
    assert message in str(caught.value)


@pytest.mark.parametrize(("fields", "policy"), TAKEN, ids=str)
def test_what_is_listed_is_taken(fields: dict[str, Any], policy: PodPolicy) -> None:
    policy.check(deployment(**fields))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_run_on_any_installation(path: Path) -> None:
    PodPolicy().check(read_manifest(path))


def test_all_refusals_are_told_at_once() -> None:
    asked = deployment(podMetadata__annotations={"dapr.io/enabled": "true"}, decode__schedulerName="mine")
    assert len(list(PodPolicy().refusals(asked))) == 2


def test_the_flag_replaces_the_lists_that_it_names() -> None:
    parsed = parse_pod_policy('{"priorityClasses": ["high"], "annotations": []}')
    assert parsed == PodPolicy(priority_classes=("high",), annotations=())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "object"),
        ('{"annotation": []}', "annotation"),
        ('{"annotations": "a"}', r"\$\.annotations"),
        ('{"annotations": ["a b"]}', "annotations: 'a b'"),
        ('{"annotations": [""]}', "annotations: ''"),
        ('{"priorityClasses": ["system-cluster-critical"]}', "never lent"),
        ('{"tolerations": ' + str(["a"] * 65).replace("'", '"') + "}", "length"),
    ],
)
def test_a_policy_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_pod_policy(text)


def test_nothing_is_made_for_a_deployment_that_asks_for_an_injector() -> None:
    digest = "registry.example.com/baton@sha256:"
    platform = Platform(digest + "a" * 64, digest + "b" * 64)

    async def main() -> None:
        clock = asyncio.get_running_loop().time
        store, custom, rng = Store(Kinds(), moment(clock)), CustomResources(("team",)), random.Random(1)
        api = MemoryKube(store)
        body = manifest(model__source="pvc://models/a", podMetadata__annotations={"dapr.io/sidecar-image": "evil"})
        body["metadata"] = {"name": "chat", "namespace": "team"}
        store.apply(DEPLOYMENTS, body, "kubectl", force=True)
        installation = Installation(lambda: platform, lambda: {"k": b"m" * 32})
        runtime = Runtime(api, custom, installation, now=lambda: wall(clock()), rng=rng)
        running = asyncio.create_task(own_kinds.run(runtime, custom, api, rng=rng))
        await asyncio.sleep(30.0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        status = store.read(DEPLOYMENTS, "team", "chat")["status"]
        (degraded,) = (condition for condition in status["conditions"] if condition["type"] == "Degraded")
        assert (degraded["status"], degraded["reason"]) == ("True", "NotAllowed")
        assert "spec.podMetadata.annotations.dapr.io/sidecar-image" in degraded["message"]
        assert not list(store.all(WORKERS, "team"))

    run_virtual(main())
