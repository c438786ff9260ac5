"""Another spelling of an equal spec, and records that older operators wrote: neither moves a Pod.

`old_records` has objects with the defaults of their day and the records that the operators of four commits made of
them. Their quantities are written as no normal form is.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton_control.spec.manifest import parse_live
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.passes.template_records import Record, Stored, current_record, read_record, record_manifest
from baton_testing.kube.manifests import manifest, set_at

Json = dict[str, Any]
DIGEST = "registry.example.com/baton@sha256:"
OLD, NEW = (Platform(DIGEST + one * 64, DIGEST + other * 64) for one, other in (("a", "b"), ("c", "d")))
OLD_RECORDS = sorted((Path(__file__).parent / "old_records").glob("*.json"))
SIZE = {"memory": "8G", "cpu": 2}


def record_of(raw: Json, stored: tuple[Stored, ...] = (), platform: Platform = NEW) -> Record:
    deployment, unknown = parse_live(raw)
    assert unknown == ()
    return current_record(deployment, platform, "", stored)


def stored_record(raw: Json) -> Stored:
    """The record of a spec after a journey through the API server."""
    deployment, _ = parse_live(raw)
    body = json.loads(json.dumps(record_manifest(record_of(raw, platform=OLD), 1, deployment, Owner("6f1c2f0e"))))
    stored = read_record({**body, "metadata": {**body["metadata"], "uid": "uid-1"}})
    assert stored is not None
    return stored


def pods_of(record: Record) -> list[object]:
    """Everything that Pods are made from; the inputs are not, which a newer operator completes."""
    made = [record.version, record.worker_image, record.gateway_image]
    return made + [(role, template.revision, template.pod) for role, template in sorted(record.rendered.items())]


def old_deployments() -> list[Any]:
    return [
        pytest.param(given["object"], given["record"], id=f"{path.stem}-{given['object']['metadata']['name']}")
        for path in OLD_RECORDS
        for given in json.loads(path.read_text(encoding="utf-8"))["deployments"]
    ]


def spell_resources_long(spec: Json) -> None:
    """The same resources as Kubernetes writes them, with other units."""
    for pool in (spec["prefill"], spec["decode"], spec["gateway"]):
        short = {name: amount for name, amount in pool.get("resources", {}).items() if amount}
        if not short:
            continue
        milli, mebi = int(short["cpu"].removesuffix("m")), short["memory"]
        memory = int(mebi[:-2]) * {"Ki": 1 << 10, "Mi": 1 << 20}[mebi[-2:]]
        cpu: object = milli // 1000 if milli % 1000 == 0 else f"{milli / 1000}"
        pool["resources"] = {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": f"{memory >> 10}Ki"}}


def leave_out_operators(spec: Json) -> None:
    """Tolerations as a manifest has them without the default that older definitions filled in."""
    for pool in (spec["prefill"], spec["decode"]):
        for toleration in pool.get("placement", {}).get("tolerations", []):
            toleration.pop("operator", None)
        for volume in pool.get("volumes", []):
            volume.pop("readOnly", None)


def name_secrets_by_objects(spec: Json) -> None:
    """Pull secrets and credentials in their newer fields."""
    names = spec.pop("imagePullSecrets", [])
    spec["pullSecrets"] = [{"name": name} for name in names]
    if "credentialsSecret" in spec["model"]:
        spec["model"]["credentials"] = {"secretName": spec["model"].pop("credentialsSecret")}


def name_parents_by_references(spec: Json) -> None:
    """The route with `parentRefs`."""
    route = spec["gateway"].get("route")
    if route is not None:
        route["parentRefs"] = [{"name": route.pop("parent"), "namespace": route.pop("parentNamespace")}]


RESPELLED: tuple[Callable[[Json], None], ...] = (
    spell_resources_long,
    leave_out_operators,
    name_secrets_by_objects,
    name_parents_by_references,
)


@pytest.mark.parametrize(("raw", "record"), old_deployments())
def test_an_upgrade_from_an_older_operator_moves_nothing(raw: Json, record: Json) -> None:
    stored = read_record(record)
    assert stored is not None
    assert pods_of(record_of(raw, (stored,))) == pods_of(stored.record)


@pytest.mark.parametrize("respell", RESPELLED, ids=lambda respell: str(respell.__name__))
@pytest.mark.parametrize(("raw", "record"), old_deployments())
def test_a_respelling_after_an_upgrade_moves_nothing(raw: Json, record: Json, respell: Callable[[Json], None]) -> None:
    stored, other = read_record(record), copy.deepcopy(raw)
    assert stored is not None
    respell(other["spec"])
    assert pods_of(record_of(other, (stored,))) == pods_of(stored.record)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("targets", "slo.tpot.target", "30ms"),
        ("bandwidth", "kvTransfer.minBandwidth", "2GB/s"),
        ("bandwidth", "slo.ttft.target", "1s"),
        ("never", "routing.disaggregation", "Auto"),
    ],
)
def test_an_edit_after_an_upgrade_of_a_field_that_was_not_recorded_moves_its_pods(
    name: str, path: str, value: str
) -> None:
    """The first pass of the new operator records the field as it is, so that an edit is seen."""
    (raw, record) = next(given.values for given in old_deployments() if given.values[0]["metadata"]["name"] == name)
    stored, other = read_record(record), copy.deepcopy(raw)
    assert stored is not None
    upgraded = record_of(raw, (stored,))
    set_at(other, ("spec", *path.split(".")), value)
    recorded = replace(stored, number=2, record=upgraded)
    assert pods_of(record_of(other, (recorded, stored))) != pods_of(stored.record)


def test_an_edit_after_an_upgrade_still_moves_its_pool() -> None:
    raw, record = old_deployments()[0].values
    stored, other = read_record(record), copy.deepcopy(raw)
    assert stored is not None
    other["spec"]["decode"]["resources"]["memory"] = "65537Mi"
    assert record_of(other, (stored,)).rendered != stored.record.rendered


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"cpu": "4000m", "memory": "1024Mi"}, {"cpu": 4, "memory": "1Gi"}),
        (SIZE, {"requests": {"cpu": "2000m", "memory": "8000M"}, "limits": {"memory": 8 * 10**9}}),
        ({"memory": "1Gi"}, {"limits": {"memory": "1Gi"}}),
        ({"limits": {"cpu": 1}}, {"cpu": "1", "limits": {"cpu": "1.0"}}),
    ],
)
@pytest.mark.parametrize("place", ["decode", "gateway"])
def test_another_spelling_of_equal_resources_moves_nothing(one: Json, other: Json, place: str) -> None:
    first, second = (manifest(**{f"{place}__resources": given}) for given in (one, other))
    stored = stored_record(first)
    assert record_of(second, (stored,)) == stored.record


def test_a_record_that_cannot_be_read_as_quantities_is_compared_as_it_is() -> None:
    stored = stored_record(manifest(decode__resources=SIZE))
    body = json.loads(json.dumps(stored.record.data()))
    body["roles"]["decode"]["inputs"]["pool"]["resources"]["memory"] = "much"
    head = {"metadata": {"name": "a", "uid": "b"}, "revision": 1, "data": body}
    spoiled = read_record(head)
    assert spoiled is not None
    after = record_of(manifest(decode__resources=SIZE), (spoiled,))
    assert after.rendered != replace(spoiled.record).rendered
