"""Tools that apply and prune leave alone what the operator made: kubectl by label and by ApplySet, Argo CD, Flux.

Argo CD and Flux themselves are not run. Their applies are made as they make them, under their own field managers, and
their rules for what is pruned are applied to the live objects: Argo CD prunes objects without an owner that carry its
tracking label or annotation, Flux what its own inventory names and older Flux what carries its labels.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from typing import Any

import pytest

from baton_operator.kube.kinds import DEPLOYMENTS
from baton_testing.kube.manifests import manifest
from baton_testing.kube.stage import Stage

Json = dict[str, Any]
NAME = "chat"
KINDS = (
    *("configmaps", "secrets", "services", "serviceaccounts", "pods", "deployments.apps", "controllerrevisions.apps"),
    *("networkpolicies.networking.k8s.io", "poddisruptionbudgets.policy", "jobs.batch", "leases.coordination.k8s.io"),
    *("llmpools.baton.dev", "persistentvolumeclaims", "replicasets.apps"),
)
PRUNED_KINDS = (
    *("core/v1/ConfigMap", "core/v1/Secret", "core/v1/Service", "core/v1/ServiceAccount", "core/v1/Pod"),
    *("apps/v1/Deployment", "apps/v1/ControllerRevision", "networking.k8s.io/v1/NetworkPolicy"),
    *("baton.dev/v1alpha1/LLMPool", "baton.dev/v1alpha1/LLMDeployment"),
)
LABELS = {
    "app.kubernetes.io/instance": NAME,  # Argo CD's own label, with an Application of the same name
    "argocd.argoproj.io/instance": NAME,
    "kustomize.toolkit.fluxcd.io/name": "team",
    "kustomize.toolkit.fluxcd.io/namespace": "flux-system",
    "app.kubernetes.io/managed-by": "Helm",
    "team": "chat",
}
ANNOTATIONS = {
    "argocd.argoproj.io/tracking-id": f"{NAME}:baton.dev/LLMDeployment:space/{NAME}",
    "argocd.argoproj.io/sync-options": "Prune=true,ServerSideApply=true",
    "kustomize.toolkit.fluxcd.io/prune": "enabled",
    "meta.helm.sh/release-name": NAME,
}
MARKS = ("argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "applyset.", "helm.", "kubectl.kubernetes.io/")


def wanted(stage: Stage, **fields: object) -> Json:
    body = manifest(**{"model__source": "pvc://models/a", "autoscaling__mode": "Off", **fields})
    metadata = {"name": NAME, "namespace": stage.space, "labels": LABELS, "annotations": ANNOTATIONS}
    return {**body, "metadata": metadata}


async def kubectl(stage: Stage, *arguments: str, given: Json | None = None, **env: str) -> str:
    """The output of kubectl, while the operator works on."""
    command = ["kubectl", f"--kubeconfig={stage.plane.kubeconfig}", f"--namespace={stage.space}", *arguments]
    text = "" if given is None else json.dumps(given)

    def run() -> str:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **env}
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return await asyncio.to_thread(run)


async def live(stage: Stage) -> dict[tuple[str, str], Json]:
    """Everything in the namespace that somebody could prune, by kind and name."""
    items = json.loads(await kubectl(stage, "get", ",".join(KINDS), "-o", "json"))["items"]
    return {(item["kind"], item["metadata"]["name"]): item for item in items}


def uids(items: dict[tuple[str, str], Json]) -> dict[tuple[str, str], str]:
    return {key: item["metadata"]["uid"] for key, item in items.items()}


def contents(items: dict[tuple[str, str], Json]) -> dict[tuple[str, str], str]:
    """The objects as text, without what Kubernetes' controllers report."""
    left_out = ("resourceVersion", "managedFields")
    return {
        key: json.dumps(
            {
                **{name: value for name, value in item.items() if name != "status"},
                "metadata": {name: value for name, value in item["metadata"].items() if name not in left_out},
            },
            sort_keys=True,
        )
        for key, item in items.items()
        if key[0] != "Lease"
    }


def own_managers(item: Json) -> set[str]:
    """The managers of an object's fields other than its status."""
    entries = item["metadata"].get("managedFields", ())
    return {entry["manager"] for entry in entries if list(entry["fieldsV1"]) != ["f:status"]}


async def rests(stage: Stage) -> dict[tuple[str, str], Json]:
    await stage.serves()
    await stage.settled()
    return await live(stage)


def has_marks(item: Json) -> list[str]:
    """Labels and annotations by which a tool would take the object for its own."""
    metadata = item["metadata"]
    keys = [*metadata.get("labels", {}), *metadata.get("annotations", {})]
    return [key for key in keys if key.startswith(MARKS)]


async def test_kubectl_applies_twice_and_prunes_by_label_and_by_set_without_touching_what_the_operator_made(
    stage: Stage,
) -> None:
    async with stage.operator():
        body = wanted(stage)
        await kubectl(stage, "apply", "--server-side", "--validate=false", "-f", "-", given=body)
        before = await rests(stage)
        assert {"Deployment", "Service", "LLMPool", "NetworkPolicy", "Pod"} <= {kind for kind, _ in before}
        allowed = [f"--prune-allowlist={kind}" for kind in PRUNED_KINDS]
        by_label = ("--prune", "-l", f"app.kubernetes.io/instance={NAME}", *allowed)
        for way in (("--server-side",), by_label, by_label):  # kubectl refuses to prune by label server-side
            output = await kubectl(stage, "apply", *way, "--validate=false", "-f", "-", given=body)
            assert "pruned" not in output
        by_set = ("apply", "--validate=false", "--prune", "--applyset=configmaps/tools", "-f", "-")
        for _ in range(2):
            output = await kubectl(stage, *by_set, given=body, KUBECTL_APPLYSET="true")
            assert "pruned" not in output
        assert output.splitlines() == [f"llmdeployment.baton.dev/{NAME} unchanged"]
        after = await rests(stage)
        del after["ConfigMap", "tools"]
        assert contents(after) == contents(before)
        assert {key: marks for key, item in after.items() if (marks := has_marks(item))} == {}
        # What is in the set and not in the manifests is pruned, so the tool did look.
        other = {"apiVersion": "v1", "kind": "List", "items": [wanted(stage) | {"metadata": {"name": "other"}}, body]}
        await kubectl(stage, *by_set, given=other, KUBECTL_APPLYSET="true")
        assert "llmdeployment.baton.dev/other pruned" in await kubectl(
            stage, *by_set, given=body, KUBECTL_APPLYSET="true"
        )
        assert contents(before).items() <= contents(await live(stage)).items()


@pytest.mark.parametrize("manager", ["argocd-controller", "kustomize-controller", "helm"])
async def test_a_tool_that_applies_server_side_owns_the_spec_alone_and_finds_nothing_to_prune(
    stage: Stage, manager: str
) -> None:
    apply = ("apply", "--server-side", f"--field-manager={manager}", "--force-conflicts", "--validate=false", "-f", "-")
    async with stage.operator():
        await kubectl(stage, *apply, given=wanted(stage))
        before = await rests(stage)
        writes = stage.writes()
        version = stage.read(DEPLOYMENTS, NAME)["metadata"]["resourceVersion"]
        for _ in range(3):
            await kubectl(stage, *apply, given=wanted(stage))
        await asyncio.sleep(4.0)
        assert stage.writes() == writes
        assert stage.read(DEPLOYMENTS, NAME)["metadata"]["resourceVersion"] == version
        assert own_managers(stage.read(DEPLOYMENTS, NAME)) == {manager}
        made = {key: item for key, item in (await live(stage)).items() if "baton" in json.dumps(item["metadata"])}
        assert contents(made).items() <= contents(before).items()
        assert len(made) > 15
        roots = [key for key, item in made.items() if not item["metadata"].get("ownerReferences")]
        assert roots == [], "Argo CD prunes objects without an owner that carry its label"
        assert {key: marks for key, item in made.items() if (marks := has_marks(item))} == {}
        managers = {name for item in made.values() for name in own_managers(item)}
        assert managers <= {"baton-operator", "baton-scaler", "kube-controller-manager", "python"}, managers
        await kubectl(stage, *apply, given=wanted(stage, decode__replicas={"min": 2, "max": 2}))
        await stage.serves(1, 2)
        assert own_managers(stage.read(DEPLOYMENTS, NAME)) == {manager}
        after = await live(stage)
        assert uids(made).items() <= uids(after).items(), "an edit of a size replaces nothing"
