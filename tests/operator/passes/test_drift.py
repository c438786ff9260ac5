"""When a live object counts as what was applied: what others and the server add is theirs, what Baton set must hold."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.desired import standing_objects, worker_deployment
from baton_operator.objects.pods import worker_template
from baton_operator.passes.drift import has_drifted
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
PLATFORM, OWNER = Platform(IMAGE, IMAGE), Owner("6f1c2f0e")


def workers() -> dict[str, Any]:
    spec_of = deployment(model__source="pvc://models/llama", prefill__resources={"cpu": "1500m", "memory": "1Gi"})
    template = worker_template(spec_of, Role.PREFILL, PLATFORM)
    manifest: dict[str, Any] = json.loads(json.dumps(worker_deployment(spec_of, template, 2, OWNER)))
    return manifest


def as_stored(wanted: dict[str, Any]) -> dict[str, Any]:
    """The object as an API server stores it: bookkeeping, defaults, quantities in its own notation."""
    live = copy.deepcopy(wanted)
    live["metadata"] |= {
        "uid": "1",
        "resourceVersion": "7",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    live["metadata"]["annotations"] = {"deployment.kubernetes.io/revision": "1"}
    live["status"] = {"replicas": 2}
    pod = live["spec"]["template"]["spec"]
    pod |= {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst"}
    pod["containers"][0]["imagePullPolicy"] = "IfNotPresent"
    pod["containers"][0]["resources"]["requests"]["cpu"] = "1.5"
    pod["containers"][0]["resources"]["limits"]["memory"] = "1024Mi"
    return live


def test_what_the_server_adds_is_no_drift() -> None:
    assert not has_drifted(workers(), as_stored(workers()))


def test_what_others_add_is_no_drift() -> None:
    live = as_stored(workers())
    live["metadata"]["labels"]["team"] = "x"
    live["spec"]["template"]["spec"]["containers"].append({"name": "mesh", "image": "mesh"})
    live["spec"]["template"]["spec"]["containers"].reverse()
    live["metadata"]["ownerReferences"].append({"uid": "other", "kind": "Group", "name": "g", "apiVersion": "v1"})
    assert not has_drifted(workers(), live)


@pytest.mark.parametrize(
    "path",
    [
        "spec.replicas",
        "spec.template.spec.containers.0.image",
        "spec.template.spec.containers.0.command.3",
        "spec.template.spec.containers.0.resources.limits.memory",
        "spec.template.spec.containers.0.securityContext.readOnlyRootFilesystem",
        "spec.template.spec.terminationGracePeriodSeconds",
        "spec.selector.matchLabels.baton\\.dev/role",
        "metadata.labels.baton\\.dev/role",
        "metadata.ownerReferences.0.controller",
    ],
)
@pytest.mark.parametrize("how", ["changed", "removed"])
def test_every_field_that_was_set_has_to_stand(path: str, how: str) -> None:
    live = as_stored(workers())
    place: Any = live
    *way, last = [part.replace("\0", ".") for part in path.replace("\\.", "\0").split(".")]
    for part in way:
        place = place[int(part)] if isinstance(place, list) else place[part]
    key: Any = int(last) if isinstance(place, list) else last
    if how == "removed":
        del place[key]
    else:
        place[key] = {bool: False, int: 99, str: "other"}[type(place[key])]
    assert has_drifted(workers(), live)


def test_lists_without_names_have_to_be_equal() -> None:
    wanted: dict[str, object] = {"spec": {"policyTypes": ["Ingress", "Egress"]}}
    assert has_drifted(wanted, {"spec": {"policyTypes": ["Ingress"]}})
    assert has_drifted(wanted, {"spec": {"policyTypes": ["Egress", "Ingress"]}})
    assert not has_drifted({"spec": {"ingress": []}}, {"spec": {}}), "an empty list is left out of answers"


def test_every_object_of_a_deployment_equals_itself() -> None:
    spec_of = deployment(model__source="pvc://models/llama")
    for manifest in standing_objects(spec_of, PLATFORM, OWNER, {"k": b"m" * 32}):
        plain = json.loads(json.dumps(manifest))
        assert not has_drifted(manifest, plain)
