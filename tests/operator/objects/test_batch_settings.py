"""The installation's claim of files and batches: in gateways' Pods of the namespaces that it names, in no others."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import kubernetes_validate
import pytest

from baton_gateway.process_rules import batch_bounds
from baton_gateway.settings import parse_settings
from baton_operator.objects.batch_settings import NO_BATCHES, parse_batch_settings
from baton_operator.objects.cluster import Platform
from baton_operator.objects.pods import gateway_template, worker_template
from baton_testing.kube.manifests import KUBERNETES, deployment
from baton_testing.kube.pod_security import violations
from baton_wire.messages.values import POOL_ROLES

Json = dict[str, Any]
IMAGE = "registry.example.com/baton/worker@sha256:" + "a" * 64
GIVEN = {
    "claimName": "batches",
    "concurrency": 8,
    "maxFileSize": "1.5Gi",
    "maxTenantSize": "100Gi",
    "maxTenantFiles": 50,
}


def platform(**given: object) -> Platform:
    return replace(Platform(IMAGE, IMAGE), batches=parse_batch_settings(json.dumps(GIVEN | given)))


def gateway_pod(settings: Platform, **fields: object) -> Json:
    template: Json = json.loads(json.dumps(gateway_template(deployment(**fields), settings)))
    return template


@pytest.mark.parametrize("version", KUBERNETES)
def test_a_gateways_pod_has_the_claim_and_stays_valid_and_restricted(version: str) -> None:
    template = gateway_pod(platform())
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": template["spec"]}
    kubernetes_validate.validate(pod, version, strict=True)
    assert violations(template["spec"]) == []
    [volume] = [volume for volume in template["spec"]["volumes"] if volume["name"] == "batches"]
    assert volume == {"name": "batches", "persistentVolumeClaim": {"claimName": "batches"}}
    [container] = template["spec"]["containers"]
    assert {"name": "batches", "mountPath": "/batches"} in container["volumeMounts"]


def test_the_gateway_reads_the_bounds_from_its_flags() -> None:
    given = deployment()
    [container] = gateway_pod(platform())["spec"]["containers"]
    settings = parse_settings([*container["command"][3:], *container["args"]])
    bounds = batch_bounds(settings)
    assert str(settings.batch_folder) == f"/batches/{given.metadata.name}", "each deployment has a folder of its own"
    assert settings.batch_concurrency == 8
    assert (bounds.file_bytes, bounds.all_bytes, bounds.number) == (1536 << 20, 100 << 30, 50)


def test_workers_and_gateways_of_other_namespaces_have_no_claim() -> None:
    given = deployment()
    others = platform(namespaces=["elsewhere"])
    assert gateway_pod(others) == gateway_pod(Platform(IMAGE, IMAGE))
    assert gateway_pod(platform(namespaces=["elsewhere", given.metadata.namespace])) == gateway_pod(platform())
    for role in POOL_ROLES:
        assert worker_template(given, role, platform()) == worker_template(given, role, Platform(IMAGE, IMAGE))


def test_without_a_claim_there_are_no_batches() -> None:
    assert parse_batch_settings("{}") == NO_BATCHES
    assert gateway_pod(platform(claimName="")) == gateway_pod(Platform(IMAGE, IMAGE))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("claimName", "../other"),
        ("claimName", "A"),
        ("claimName", 3),
        ("namespaces", ["a/b"]),
        ("namespaces", "team-a"),
        ("concurrency", 0),
        ("concurrency", 10_001),
        ("concurrency", True),
        ("maxFileSize", "10 GB"),
        ("maxFileSize", "0"),
        ("maxFileSize", -1),
        ("maxFileSize", "2Ti"),
        ("maxFileSize", "101Gi"),
        ("maxTenantSize", "many"),
        ("maxTenantSize", "2Pi"),
        ("maxTenantFiles", 1.5),
        ("maxTenantFiles", 100_001),
        ("maxFiles", 3),
    ],
)
def test_a_bad_value_is_refused_by_its_field(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"--batches: .*{field}"):
        platform(**{field: value})


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_value_that_is_no_object_is_refused_by_its_flag(text: str) -> None:
    with pytest.raises(ValueError, match="--batches: "):
        parse_batch_settings(text)


def test_sizes_are_rounded_up_to_whole_mebibytes() -> None:
    assert dict(platform(maxFileSize="1").batches.bounds)["batch-file-mib"] == 1
    assert dict(platform(maxFileSize="1G").batches.bounds)["batch-file-mib"] == 954
