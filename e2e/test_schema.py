"""The definitions on a real API server against the reader of files: the same objects are accepted and refused.

Also what only a server shows: defaults that are filled in, subresources, columns, and the size of the definitions.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton_control.errors import ManifestError
from baton_control.spec.api import LLMDeployment
from baton_control.spec.manifest import parse_live, parse_object
from baton_operator.passes.status_writer import without_empty
from baton_operator.schema.reference import rows
from baton_operator.schema.status import DeploymentStatus
from baton_testing.kube.api_server import ApiServer, Json
from baton_testing.kube.manifests import manifest, set_at

GROUP = "/apis/baton.dev/v1alpha1/namespaces/default"
DEPLOYMENTS, POOLS = f"{GROUP}/llmdeployments", f"{GROUP}/llmpools"
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
VALUES: tuple[object, ...] = (
    *(
        -1,
        0,
        1,
        2,
        16,
        63,
        1024,
        1025,
        1 << 31,
        0.5,
        1e300,
        True,
        False,
        "",
        "1",
        "Off",
        "auto",
        "none",
        "full",
        "Never",
    ),
    *("500ms", "0s", "1h", "25h", "1e3s", "64Mi", "0Gi", "10GB/s", "4", "500m", "a/b", "-a", "a b", "a\nb", "a'b", "é"),
    *("0.5", ".5", "1.", "1.5Gi", ".5Gi", "8G", "1e3", "2E6", "9E", "4Ei", "9e99", "400m", "1m30s", "1m 30s", "5Zi"),
    *(
        "a..b/c",
        "a.b/",
        "/a",
        "A.b/c",
        f"{'a' * 64}.b/c",
        f"a/{'b' * 63}",
        f"a/{'b' * 64}",
        f"{'a.' * 95}b/c",
        "a/b/c",
        "a_/b",
    ),
    *("x" * 64, "x" * 600, "a; rm -rf /", "--flag", "../up", "http://host/x", "pvc://claim/a", "hf://org/name"),
    *([], ["a"], [1], [{}], ["a"] * 17, {}, {"a": "b"}, {"a": 1}, {"baton.dev/a": "b"}, {"foo": {}}),
)


def leaves() -> Iterator[str]:
    """Paths of every field of the spec, as a manifest writes them; those inside lists are in `INSIDE`."""
    for row in rows(LLMDeployment, ""):
        if row.path.startswith("spec.") and "[]" not in row.path and row.path != "spec.decode":
            yield row.path
            if row.path.startswith("spec.prefill."):
                yield row.path.replace("spec.prefill.", "spec.decode.", 1)


INSIDE = {
    "spec.prefill.placement.tolerations": {"key": "a/b"},
    "spec.decode.resourceClaims": {"name": "gpu", "resourceClaimTemplateName": "gpu"},
    "spec.pullSecrets": {"name": "a"},
}
FIELDS = {
    "spec.prefill.placement.tolerations": ("key", "operator", "value", "effect"),
    "spec.decode.resourceClaims": ("name", "resourceClaimTemplateName"),
    "spec.pullSecrets": ("name",),
}


def is_read(raw: Json) -> bool:
    try:
        parse_object(raw)
    except ManifestError:
        return False
    return True


def is_accepted(api: ApiServer, raw: Json) -> bool:
    reply = api.send("POST", f"{DEPLOYMENTS}?dryRun=All&fieldValidation=Strict", raw)
    assert reply.status in (201, 400, 422), reply.message
    return reply.status == 201


def differing(api: ApiServer, path: str, objects: Iterator[tuple[object, Json]]) -> list[str]:
    differences = []
    for value, raw in objects:
        read, accepted = is_read(raw), is_accepted(api, raw)
        if read != accepted:
            differences.append(f"{path} = {str(value)[:40]!r}: file {read}, server {accepted}")
    return differences


@pytest.mark.parametrize("path", sorted(leaves()))
def test_a_field_takes_the_same_values_from_a_file_and_on_the_server(api: ApiServer, path: str) -> None:
    def objects() -> Iterator[tuple[object, Json]]:
        for value in VALUES:
            raw = manifest()
            set_at(raw, tuple(path.split(".")), value)
            yield value, raw

    assert differing(api, path, objects()) == []


@pytest.mark.parametrize(("path", "field"), [(path, field) for path, fields in FIELDS.items() for field in fields])
def test_a_field_in_a_list_takes_the_same_values_from_a_file_and_on_the_server(
    api: ApiServer, path: str, field: str
) -> None:
    def objects() -> Iterator[tuple[object, Json]]:
        for value in VALUES:
            raw = manifest()
            set_at(raw, tuple(path.split(".")), [{**INSIDE[path], field: value}])
            yield value, raw

    assert differing(api, f"{path}[].{field}", objects()) == []


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_accepted_and_reads_the_same_with_the_servers_defaults(api: ApiServer, path: Path) -> None:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    namespace = raw["metadata"].get("namespace", "default")
    place = f"/apis/baton.dev/v1alpha1/namespaces/{namespace}/llmdeployments?fieldValidation=Strict&dryRun=All"
    reply = api.send("POST", place, raw)
    if raw["spec"]["model"]["source"].startswith("file://tiny"):
        assert "one in the image" in reply.message, "an example for laptops, next to its model"
        return
    assert reply.status == 201, reply.message
    live, unknown = parse_live(reply.body)
    assert unknown == ()
    assert live.spec == parse_object(raw).spec


def test_the_smallest_manifest_gets_every_default(api: ApiServer) -> None:
    reply = api.send("POST", f"{DEPLOYMENTS}?dryRun=All", manifest())
    spec = reply.body["spec"]
    assert isinstance(spec, dict)
    assert spec["slo"] == {
        "ttft": {"target": "500ms", "percentile": 95},
        "tpot": {"target": "50ms", "percentile": 95},
    }
    assert (spec["prefill"]["replicas"], spec["gateway"]["limits"]) == (
        {"min": 1, "max": 1},
        {"maxRequestDuration": "10m", "oversizedMaxTokens": "Refuse"},
    )
    assert parse_live(reply.body)[0].spec == parse_object(manifest()).spec


def test_a_pool_scales_through_its_subresource_and_shows_its_selector(api: ApiServer) -> None:
    facade: Json = {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LLMPool",
        "metadata": {"name": "chat-decode"},
        "spec": {"deployment": "chat", "role": "decode"},
    }
    assert api.send("POST", POOLS, facade).status == 201
    place = f"{POOLS}/chat-decode"
    try:
        status = {"status": {"replicas": 1, "selector": "baton.dev/deployment=chat", "effective": 1}}
        assert api.send("PATCH", f"{place}/status", status, kind="merge-patch+json").status == 200
        scaled = api.send("PATCH", f"{place}/scale", {"spec": {"replicas": 5}}, kind="merge-patch+json")
        assert scaled.status == 200, scaled.message
        assert scaled.body["spec"] == {"replicas": 5}
        assert scaled.body["status"] == {"replicas": 1, "selector": "baton.dev/deployment=chat"}
        refused = api.send("PATCH", f"{place}/scale", {"spec": {"replicas": 1025}}, kind="merge-patch+json")
        assert refused.status in (400, 422)
    finally:
        assert api.send("DELETE", place).status == 200


STATUS: Json = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "Serving",
            "message": "",
            "lastTransitionTime": "2026-11-20T10:00:00Z",
        }
    ],
    "summary": "NewTemplateFails",
    "prefill": {"desired": 3, "ready": 3, "summary": "3/3"},
    "slo": {"ttft": "p95 412ms/500ms"},
}


def test_status_is_a_subresource_with_columns_that_a_person_can_act_on(api: ApiServer) -> None:
    raw = copy.deepcopy(manifest())
    raw["status"] = STATUS
    created = api.send("POST", DEPLOYMENTS, raw)
    assert (created.status, "status" in created.body) == (201, False)
    place = f"{DEPLOYMENTS}/chat"
    try:
        written = api.send("PATCH", f"{place}/status", {"status": STATUS}, kind="merge-patch+json")
        assert written.status == 200, written.message
        bad = {"status": {"conditions": [{"type": "Ready", "status": "Maybe"}]}}
        assert api.send("PATCH", f"{place}/status", bad, kind="merge-patch+json").status == 422
        table = api.send("GET", place, accept="application/json;as=Table;g=meta.k8s.io;v=v1").body
        columns, lines = table["columnDefinitions"], table["rows"]
        assert isinstance(columns, list)
        assert isinstance(lines, list)
        shown = {
            c["name"].upper(): cell for c, cell in zip(columns, lines[0]["cells"], strict=True) if not c["priority"]
        }
        assert list(shown) == ["NAME", "MODEL", "PREFILL", "DECODE", "TTFT", "TPOT", "READY", "STATUS", "AGE"]
        assert (shown["MODEL"], shown["PREFILL"], shown["TTFT"]) == ("tiny", "3/3", "p95 412ms/500ms")
        assert (shown["READY"], shown["STATUS"]) == ("True", "NewTemplateFails")
    finally:
        assert api.send("DELETE", place).status == 200


def test_a_mapping_goes_with_the_last_of_its_applied_fields(api: ApiServer) -> None:
    place = f"{DEPLOYMENTS}/chat"

    def applied(**fields: object) -> Json:
        raw = manifest(**fields)
        raw["metadata"] = {"name": "chat", "namespace": "default"}
        reply = api.send("PATCH", f"{place}?fieldManager=kubectl", raw, kind="apply-patch+yaml")
        assert reply.status in (200, 201), reply.message
        spec: Json = reply.body["spec"]  # type: ignore[assignment]
        return spec["gateway"]  # type: ignore[return-value]

    try:
        assert {"tls", "route"} <= set(
            applied(gateway__tls={"secretName": "a"}, gateway__route={"parent": "b"}, gateway__openAccess=True)
        )
        assert not {"tls", "route"} & set(applied())
    finally:
        assert api.send("DELETE", place).status == 200


def test_a_status_whose_numbers_are_not_known_any_more_is_taken(api: ApiServer) -> None:
    place = f"{DEPLOYMENTS}/chat"
    assert api.send("POST", DEPLOYMENTS, manifest()).status == 201
    try:
        for slo, revisions in (
            ({"ttft": "p95 412ms/500ms", "tpot": "p95 20ms/25ms"}, ({"revision": "a", "workers": 1},)),
            ({"tpot": "p95 20ms/25ms"}, ({"revision": "a", "workers": 1},)),
            ({}, ()),
        ):
            pool = {"desired": 1, "revisions": revisions}
            raw = {"observedGeneration": 1, "prefill": pool, "slo": slo}
            status = without_empty(DeploymentStatus.model_validate(raw))
            body = {"apiVersion": "baton.dev/v1alpha1", "kind": "LLMDeployment", "metadata": {"name": "chat"}}
            path = f"{place}/status?fieldManager=baton-status&force=true"
            written = api.send("PATCH", path, {**body, "status": status}, kind="apply-patch+yaml")
            assert (written.status, written.body.get("status")) == (200, status), written.message
    finally:
        assert api.send("DELETE", place).status == 200
