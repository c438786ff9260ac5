"""Migration to `v1beta1` on a real API server: two versions of one schema, one of them stored, and nothing is lost.

The definition of the LLMDeployment has a group of its own here, so that other tests keep theirs.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from baton_control.spec.manifest import parse_live
from baton_operator.schema.crd import GROUP, VERSION, deployment_definition
from baton_testing.kube.api_server import ApiServer
from baton_testing.kube.manifests import set_at
from baton_testing.kube.mutations import base, mutations, paths

Json = dict[str, Any]
NEXT, OWN = "v1beta1", "next.baton.dev"
NAME = f"llmdeployments.{OWN}"
DEFINITION = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{NAME}"

NEEDED: dict[str, Json] = {
    "gateway": {"openAccess": True},
    "gateway.autoscaling": {"max": 64},
    "gateway.route": {"parent": "edge"},
    "slo.ttft": {"target": "1s"},
    "telemetry.tracing": {"endpoint": "http://collector:4318"},
    "slo.tpot": {"target": "50ms"},
    **{f"{pool}.accelerator": {"resource": "nvidia.com/gpu"} for pool in ("prefill", "decode")},
    **{f"{pool}.hugepages": {"size": "64Mi"} for pool in ("prefill", "decode")},
}
"""Parts that have a field of their own which must be there."""


def path(version: str, name: str = "") -> str:
    return f"/apis/{OWN}/{version}/namespaces/default/llmdeployments" + (f"/{name}" if name else "")


def definition(stored: str, *versions: str) -> Json:
    """With these versions, of which one is stored."""
    body: Json = deployment_definition()
    body["metadata"]["name"], body["spec"]["group"] = NAME, OWN
    body["spec"]["names"]["categories"] = []
    (only,) = body["spec"]["versions"]
    body["spec"]["versions"] = [{**only, "name": version, "storage": version == stored} for version in versions]
    return body


def define(api: ApiServer, wanted: Json) -> None:
    wanted["metadata"]["resourceVersion"] = live(api)["metadata"]["resourceVersion"]
    reply = api.send("PUT", DEFINITION, wanted)
    assert reply.status == 200, reply.message


def read(api: ApiServer, version: str, name: str) -> Json:
    """As a client of that version sees it, without the version and what belongs to a write."""
    reply = api.until("GET", path(version, name))
    body: Json = copy.deepcopy(reply.body)
    assert body.pop("apiVersion") == f"{OWN}/{version}"
    for name_of_write in ("resourceVersion", "managedFields"):
        body["metadata"].pop(name_of_write, None)
    return body


def beside(field: str) -> Json:
    """A deployment with what a field cannot be without."""
    body = base()
    for part, value in NEEDED.items():
        if field.startswith(f"{part}.") and not field.startswith("gateway.apiKeys"):
            set_at(body["spec"], tuple(part.split(".")), dict(value))
    return body


@pytest.fixture
def objects(api: ApiServer) -> Iterator[dict[str, Json]]:
    """By name, one object for each value that a field may have, made while there is but one version."""
    assert api.send("POST", DEFINITION.rpartition("/")[0], definition(VERSION, VERSION)).status == 201
    api.until("GET", path(VERSION))
    stored_objects: dict[str, Json] = {}
    for number, mutation in enumerate(mutations()):
        body = mutation.on(beside(mutation.path)) | {
            "apiVersion": f"{OWN}/{VERSION}",
            "metadata": {"name": f"m{number}"},
        }
        if api.send("POST", path(VERSION), body).status == 201:
            stored_objects[f"m{number}"] = read(api, VERSION, f"m{number}")
    yield stored_objects
    api.send("DELETE", DEFINITION)


def test_a_second_version_is_stored_without_loss_and_the_first_can_go(api: ApiServer, objects: dict[str, Json]) -> None:
    set_fields = {mutation.path for number, mutation in enumerate(mutations()) if f"m{number}" in objects}
    assert set_fields == set(paths()), "every field is set to a value that it may have"

    define(api, definition(VERSION, VERSION, NEXT))  # both are served, the first is stored
    api.until("GET", path(NEXT))
    assert {name: read(api, NEXT, name) for name in objects} == objects

    define(api, definition(NEXT, VERSION, NEXT))  # the second is stored: old objects stay as they are until written
    api.until("GET", path(NEXT))
    status = {"status": {"observedGeneration": 1, "summary": "Serving"}}
    for name in objects:
        reply = api.send("PATCH", f"{path(NEXT, name)}/status", status, kind="merge-patch+json")
        assert reply.status == 200, reply.message
        body = read(api, VERSION, name)
        assert body.pop("status") == status["status"]
        assert body == objects[name]
        assert parse_live(body | {"apiVersion": f"{GROUP}/{VERSION}"})[1] == (), "an operator of the first reads it"

    assert live(api)["status"]["storedVersions"] == [VERSION, NEXT]
    too_early = definition(NEXT, NEXT)
    too_early["metadata"]["resourceVersion"] = live(api)["metadata"]["resourceVersion"]
    refused = api.send("PUT", DEFINITION, too_early)
    assert (refused.status, "storedVersions" in refused.message) == (422, True), "something may be stored in the first"
    done = api.send("PATCH", f"{DEFINITION}/status", {"status": {"storedVersions": [NEXT]}}, kind="merge-patch+json")
    assert done.status == 200, done.message
    define(api, definition(NEXT, NEXT))  # all are written in the second: the first goes
    api.until("GET", path(VERSION), 404)
    assert {name: read(api, NEXT, name) for name in objects} == {n: o | status for n, o in objects.items()}


def live(api: ApiServer) -> Json:
    body: Json = api.send("GET", DEFINITION).body
    return body
