"""Every rule of the definitions, on a real API server: an object that keeps it and one that breaks it.

The reader of files has to agree about both, except for rules about a change, which a file cannot break.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from baton_control.errors import ManifestError, UnsupportedError
from baton_control.spec.manifest import parse_object
from baton_control.spec.reserved_keys import MESH_OPT_OUTS
from baton_operator.objects.pods import worker_template
from baton_testing.kube.api_server import ApiServer, Json, Reply
from baton_testing.kube.manifests import manifest
from baton_testing.kube.rule_cases import (
    GPU,
    Case,
    affinity_cases,
    bounded,
    edge_cases,
    pool_cases,
    resource_cases,
)
from baton_testing.kube.stage import PLATFORM
from baton_wire.messages.values import Role

DEPLOYMENTS = "/apis/baton.dev/v1alpha1/namespaces/default/llmdeployments"
POOLS = "/apis/baton.dev/v1alpha1/namespaces/default/llmpools"
CRDS = Path(__file__).parents[1] / "crds"
OPEN: Json = {"openAccess": True}
LOADED: Json = {"type": "LoadBalancer"}
CLASSED: Json = {**LOADED, "loadBalancerClass": "example.com/internal"}
BALANCED = manifest(gateway={**OPEN, "service": CLASSED})
FOUR = {"min": 4, "max": 4}
EMBEDDING: Json = {"source": "file:///model", "servedName": "tiny", "maxContextTokens": 512, "tasks": ["Embed"]}


def named(name: str) -> Json:
    raw = manifest()
    raw["metadata"] = {"name": name}
    return raw


def both_min(minimum: int, **more: object) -> Json:
    replicas = {"min": minimum, "max": 4}
    return manifest(prefill__replicas=replicas, decode__replicas=replicas, **more)


def window(**more: object) -> list[Json]:
    return [{"start": "22:00", "end": "06:00", **more}]


IMAGE = "oci://registry.example.com/models/llama@sha256:" + "d" * 64
CASES_OF_PLACES = [case for owner in ("prefill", "decode", "gateway") for case in affinity_cases(owner)]
SCALED: Json = {"min": 2, "max": 4}
CASES = [
    *CASES_OF_PLACES,
    bounded("spec.gateway.autoscaling", "must be at most", "gateway__autoscaling", SCALED, {"min": 5, "max": 4}),
    bounded(
        "spec.gateway", "must be absent", "gateway", {"autoscaling": SCALED}, {"autoscaling": SCALED, "replicas": 2}
    ),
    Case("", "metadata.name must", named("a-1"), named("1-a")),
    Case("", "metadata.name must", named("a" * 36), named("a" * 37)),
    bounded("spec.model.source", "must have no '..'", "model__source", "file:///a..b", "file:///a/../b"),
    bounded("spec.model.source", "must have no '..'", "model__source", "file:///a/.b", "file:///a/.."),
    *(
        Case(
            "spec.model.source",
            "must have a path from '/'",
            manifest(model__source=f"{scheme}:///a/config.json"),
            manifest(model__source=f"{scheme}://a/config.json"),
            is_for_files=True,
        )
        for scheme in ("file", "random")
    ),
    bounded("spec.slo.ttft.target", "must be a duration", "slo__ttft__target", "1ms", "0ms"),
    bounded("spec.slo.ttft.target", "must be a duration", "slo__ttft__target", "1h", "3601s"),
    bounded("spec.slo.tpot.target", "must be a duration", "slo__tpot__target", "1.5s", "0.5ms"),
    *resource_cases("spec.gateway.resources", "gateway__resources"),
    *resource_cases("spec.model.fetch.resources", "model__fetch__resources"),
    *pool_cases("prefill"),
    *pool_cases("decode"),
    bounded("spec.kvTransfer.minBandwidth", "must be a rate", "kvTransfer__minBandwidth", "1MB/s", "0.9MB/s"),
    bounded("spec.kvTransfer.minBandwidth", "must be a rate", "kvTransfer__minBandwidth", "10000GB/s", "10001GB/s"),
    Case(
        "spec.autoscaling.scaleToZeroAfter",
        "must be a duration",
        both_min(0, autoscaling__scaleToZeroAfter="1m"),
        both_min(0, autoscaling__scaleToZeroAfter="59s"),
    ),
    bounded(
        "spec.autoscaling.schedules[]",
        "must differ",
        "autoscaling__schedules",
        window(decode=1),
        window(decode=1, end="22:00"),
    ),
    bounded("spec.autoscaling.schedules[]", "a schedule names", "autoscaling__schedules", window(prefill=1), window()),
    *(
        bounded(
            "spec",
            f"{role} of a schedule must be at most",
            "autoscaling__schedules",
            window(**{role: 1}),
            window(**{role: 9}),
        )
        for role in ("prefill", "decode")
    ),
    bounded("spec.rollout", "must be at least 1", "rollout", {"maxSurge": 0, "maxUnavailable": 1}, {"maxSurge": 0}),
    bounded("spec.rollout", "must be at least 1", "rollout", {"maxSurge": "25%"}, {"maxSurge": "0%"}),
    *edge_cases(),
    bounded(
        "spec.gateway",
        "must be false while",
        "gateway",
        {"openAccess": False, "apiKeys": {"secretName": "a"}},
        {"openAccess": True, "apiKeys": {"secretName": "a"}},
    ),
    *(
        bounded("spec.gateway", "a gateway that can be reached", "gateway", reached | {"openAccess": True}, reached)
        for reached in ({"service": {"type": "LoadBalancer"}}, {"route": {"parent": "edge"}})
    ),
    bounded(
        "spec.gateway.limits.maxQueueDuration", "must be a duration", "gateway__limits__maxQueueDuration", "5s", "2h"
    ),
    bounded(
        "spec.gateway.limits.maxRequestDuration",
        "must be a duration",
        "gateway__limits__maxRequestDuration",
        "1s",
        "25h",
    ),
    *(
        bounded(
            "spec.podMetadata",
            "keys of the domains",
            f"podMetadata__{field}",
            {"batonxdev/a": "b", "notk8s.io/a": "b"},
            {f"{domain}/a": "b"},
        )
        for field, domains in (
            ("labels", ("baton.dev", "x.baton.dev", "app.kubernetes.io", "k8s.io", "sidecar.istio.io")),
            ("annotations", ("baton.dev", "x.baton.dev")),
        )
        for domain in domains
    ),
    *(
        bounded("spec.podMetadata", "keys of the domains", "podMetadata__labels", {key: value}, {key: "other"})
        for key, value in MESH_OPT_OUTS.items()
    ),
    *(
        bounded(path, "keys of the domains", field, {"batonxdev/a": "b"}, {"x.baton.dev/a": "b"})
        for path, field in (
            ("spec.gateway.service", "gateway__service__annotations"),
            ("spec.model.fetch", "model__fetch__serviceAccountAnnotations"),
        )
    ),
    *(
        bounded(
            f"{path}.{field}",
            "keys must each be",
            f"{path.removeprefix('spec.').replace('.', '__')}__{field}",
            good,
            bad,
        )
        for path, field in (
            ("spec.gateway.service", "annotations"),
            ("spec.model.fetch", "serviceAccountAnnotations"),
            ("spec.gateway.placement", "nodeSelector"),
            ("spec.model.fetch.placement", "nodeSelector"),
        )
        for good, bad in [({"a.b/c_d": "e"}, {"a b": "c"})]
    ),
    *(
        bounded(
            f"{path}.tolerations[]",
            "must be absent",
            f"{path.removeprefix('spec.').replace('.', '__')}__tolerations",
            [{"key": "a", "operator": "Equal", "value": "b"}],
            [{"key": "a", "value": "b"}],
        )
        for path in ("spec.gateway.placement", "spec.model.fetch.placement")
    ),
    *(
        bounded(
            f"spec.podMetadata.{field}", "keys must each be", f"podMetadata__{field}", {"a.b/c_d": "e"}, {"a b": "c"}
        )
        for field in ("labels", "annotations")
    ),
    Case("spec", "replicas.min must be 0", both_min(0), manifest(decode__replicas={"min": 0, "max": 1})),
    Case(
        "spec",
        "needs replicas.min 0",
        both_min(0, autoscaling__scaleToZeroAfter="5m"),
        both_min(1, autoscaling__scaleToZeroAfter="5m"),
    ),
    *(
        Case("spec.model", "names must differ", manifest(model__aliases=["a", "b"]), manifest(model__aliases=wrong))
        for wrong in (["a", "a"], ["tiny"])
    ),
    Case(
        "spec",
        "fp8 needs",
        manifest(model__kvCacheDtype="fp8", prefill__accelerator=GPU, decode__accelerator=GPU),
        manifest(model__kvCacheDtype="fp8", decode__accelerator=GPU),
    ),
    Case(
        "spec.prefill",
        "needs an accelerator",
        manifest(prefill__accelerator=GPU, prefill__engine={"offloadedLayers": 8}),
        manifest(prefill__engine={"offloadedLayers": 8}),
    ),
    Case(
        "spec.decode",
        "needs an accelerator",
        manifest(decode__accelerator=GPU, decode__engine={"offloadedLayers": 8, "offloadDecode": True}),
        manifest(decode__engine={"offloadedLayers": 8, "offloadDecode": True}),
    ),
    Case(
        "spec.model",
        "harmony is",
        manifest(model__toolFormat="harmony", model__reasoningFormat="harmony"),
        manifest(model__toolFormat="harmony", model__reasoningFormat="none"),
    ),
    Case(
        "spec.model",
        "must be Shared or PerWorker",
        manifest(model__source=IMAGE, model__cache={"type": "ImageVolume"}),
        manifest(model__cache={"type": "ImageVolume"}),
    ),
    Case(
        "spec.model.cache",
        "must be absent while claimName",
        manifest(model__cache={"claimName": "models"}),
        manifest(model__cache={"claimName": "models", "storageClassName": "fast"}),
    ),
    Case(
        "spec.model.cache",
        "must be absent while type",
        manifest(model__source=IMAGE, model__cache={"type": "ImageVolume"}),
        manifest(model__source=IMAGE, model__cache={"type": "ImageVolume", "claimName": "models"}),
    ),
    Case(
        "spec.model.cache",
        "must be ReadWriteOnce or",
        manifest(model__cache={"type": "PerWorker", "accessMode": "ReadWriteOnce"}),
        manifest(model__cache={"type": "PerWorker", "accessMode": "ReadOnlyMany"}),
    ),
    Case(
        "spec",
        "every decode step would wait",
        manifest(decode__accelerator=GPU, decode__engine={"offloadedLayers": 8, "offloadDecode": True}),
        manifest(decode__accelerator=GPU, decode__engine={"offloadedLayers": 8}),
    ),
    Case(
        "spec",
        "must be absent while model.tasks",
        manifest(model__tasks=["Embed"], prefill__replicas={"min": 0, "max": 4}),
        manifest(model__tasks=["Embed"], decode={}),
    ),
    Case(
        "spec",
        "must be false while model.tasks",
        manifest(model__tasks=["Rerank", "Generate"], autoscaling__flips=True),
        manifest(model__tasks=["Rerank"], autoscaling__flips=True),
    ),
    Case(
        "spec",
        "decode of a schedule must be at most",
        manifest(model__tasks=["Embed"], autoscaling__schedules=window(prefill=1)),
        manifest(model__tasks=["Embed"], autoscaling__schedules=window(decode=1)),
    ),
    Case(
        "spec",
        "needs replicas.min 0",
        manifest(model__tasks=["Embed"], prefill__replicas={"min": 0, "max": 1}, autoscaling__scaleToZeroAfter="5m"),
        manifest(model__tasks=["Embed"], autoscaling__scaleToZeroAfter="5m"),
    ),
    Case(
        "spec",
        "fp8 needs",
        manifest(model={**EMBEDDING, "kvCacheDtype": "fp8"}, prefill__accelerator=GPU),
        manifest(model={**EMBEDDING, "kvCacheDtype": "fp8"}),
    ),
    Case(
        "spec",
        "must be at least what both pools",
        manifest(
            model__tasks=["Embed"],
            prefill={"accelerator": GPU, "replicas": FOUR},
            autoscaling__budget={"maxAccelerators": 4},
        ),
        manifest(
            model__tasks=["Embed"],
            prefill={"accelerator": GPU, "replicas": FOUR},
            autoscaling__budget={"maxAccelerators": 3},
        ),
    ),
    Case(
        "spec",
        "must be at least what both pools",
        manifest(decode={"accelerator": GPU, "replicas": FOUR}, autoscaling__budget={"maxAccelerators": 4}),
        manifest(decode={"accelerator": GPU, "replicas": FOUR}, autoscaling__budget={"maxAccelerators": 3}),
    ),
]


def pool(**spec: object) -> Json:
    return {
        "apiVersion": "baton.dev/v1alpha1",
        "kind": "LLMPool",
        "metadata": {"name": "chat-prefill"},
        "spec": {"deployment": "chat", "role": "prefill", **spec},
    }


CACHED = manifest(model__cache={"size": "10Gi", "storageClassName": "fast"})
CHANGES = [
    (
        Case(
            "spec.model.cache",
            "cannot be changed",
            CACHED,
            manifest(model__cache={"size": "10Gi", "storageClassName": "slow"}),
        ),
        CACHED,
    ),
    (Case("spec.model.cache", "cannot be changed", CACHED, manifest(model__cache={"size": "10Gi"})), CACHED),
    (
        Case(
            "spec.model.cache", "cannot be changed", manifest(), manifest(model__cache={"accessMode": "ReadWriteOnce"})
        ),
        manifest(),
    ),
    (
        Case(
            "spec.model.cache",
            "must be absent while claimName",
            manifest(model__cache={"claimName": "models", "accessMode": "ReadWriteOnce", "size": "1Gi"}),
            manifest(model__cache={"claimName": "models", "storageClassName": "fast"}),
        ),
        CACHED,
    ),
    (
        Case(
            "spec.model.cache",
            "cannot shrink",
            manifest(model__cache={"size": "1Ti", "storageClassName": "fast"}),
            manifest(model__cache={"size": "9Gi", "storageClassName": "fast"}),
        ),
        CACHED,
    ),
    (
        Case(
            "spec.gateway.service",
            "cannot be changed while type stays",
            manifest(gateway={**OPEN, "service": {**CLASSED, "port": 81}}),
            manifest(gateway={**OPEN, "service": LOADED}),
        ),
        BALANCED,
    ),
    *(
        (Case("spec", "cannot get or lose Generate", manifest(model__tasks=kept), manifest(model__tasks=changed)), raw)
        for raw, kept, changed in (
            (manifest(), ["Generate", "Embed"], ["Embed"]),
            (manifest(model__tasks=["Embed"]), ["Rerank"], ["Embed", "Generate"]),
        )
    ),
    (Case("spec", "cannot be changed", pool(replicas=3), pool(deployment="other")), pool()),
    (Case("spec", "cannot be changed", pool(), pool(role="decode")), pool()),
]


def create(api: ApiServer, raw: Json, is_dry: bool = True) -> Reply:
    path = POOLS if raw["kind"] == "LLMPool" else DEPLOYMENTS
    return api.send("POST", f"{path}?fieldValidation=Strict{'&dryRun=All' if is_dry else ''}", raw)


def place_of(raw: Json) -> str:
    metadata = raw["metadata"]
    assert isinstance(metadata, dict)
    return f"{POOLS if raw['kind'] == 'LLMPool' else DEPLOYMENTS}/{metadata['name']}"


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rule_lets_pass_what_keeps_it_and_refuses_what_breaks_it(api: ApiServer, case: Case) -> None:
    good, bad = create(api, case.good), create(api, case.bad)
    assert good.status == 201, good.message
    assert bad.status == 422, bad.message
    assert case.message in bad.message
    parse_object(case.good)
    if case.is_for_files:
        slipped = parse_object(case.bad)
        role = Role.PREFILL if case.path == "spec.prefill" else Role.DECODE
        with pytest.raises(UnsupportedError):
            worker_template(slipped, role, PLATFORM)
    else:
        with pytest.raises(ManifestError):
            parse_object(case.bad)


@pytest.mark.parametrize(("case", "before"), CHANGES, ids=str)
def test_a_rule_about_a_change_lets_pass_what_keeps_it_and_refuses_what_breaks_it(
    api: ApiServer, case: Case, before: Json
) -> None:
    created = create(api, before, is_dry=False)
    assert created.status == 201, created.message
    place = place_of(before)
    try:
        bad = api.send("PATCH", place, {"spec": None}, kind="merge-patch+json")
        assert bad.status == 422
        for raw, status in ((case.good, 200), (case.bad, 422)):
            version = api.send("GET", place).body["metadata"]
            assert isinstance(version, dict)
            reply = api.send("PUT", place, {**raw, "metadata": {**version, "managedFields": []}})
            assert reply.status == status, reply.message
        assert case.message in reply.message
    finally:
        assert api.send("DELETE", place).status == 200


def rules_of(schema: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """The path of each rule in a schema, and its message. Rules in place of a pattern are left out: `test_schema.py`
    tries many values of each field."""
    rules = schema.get("x-kubernetes-validations", [])
    assert isinstance(rules, list)
    for rule in rules:
        if not rule["rule"].startswith(
            ("self.matches(", "string(self).matches(", "type(self) == int", "false", "!format.")
        ):
            yield path, str(rule["message"])
    inner = schema.get("properties", {})
    assert isinstance(inner, dict)
    for name, field in inner.items():
        yield from rules_of(field, f"{path}.{name}" if path else name)
    for below in ("items", "additionalProperties"):
        if isinstance(schema.get(below), dict):
            yield from rules_of(schema[below], f"{path}[]")  # type: ignore[arg-type]


@pytest.mark.parametrize(("file", "kind"), [("llmdeployments.yaml", "LLMDeployment"), ("llmpools.yaml", "LLMPool")])
def test_every_rule_of_a_definition_has_a_case(file: str, kind: str) -> None:
    definition = yaml.safe_load((CRDS / file).read_text(encoding="utf-8"))
    rules = list(rules_of(definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]))
    cases = [case for case in (*CASES, *(case for case, _ in CHANGES)) if case.good["kind"] == kind]
    assert rules
    assert [
        rule for rule in rules if not any(case.path == rule[0] and rule[1].startswith(case.message) for case in cases)
    ] == []
