"""The record of rendered templates: what makes a new one, and all that does not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from baton_control.spec.allowed import fields_of, model_of
from baton_control.spec.api import DeploymentSpec, LLMDeployment
from baton_control.spec.base_model import Model
from baton_operator.objects.batch_settings import BatchSettings
from baton_operator.objects.cluster import Owner, Platform
from baton_operator.objects.identity_settings import IdentitySettings
from baton_operator.objects.pod_ids import PodIds
from baton_operator.objects.pods import TEMPLATE_VERSION
from baton_operator.passes.template_records import (
    Record,
    Stored,
    are_same_inputs,
    current_record,
    find_outdated,
    inputs,
    read_record,
    record_manifest,
)
from baton_testing.kube.field_values import VALUES
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import POOL_ROLES, Role

DIGEST = "registry.example.com/baton@sha256:"
OLD = Platform(DIGEST + "a" * 64, DIGEST + "b" * 64)
NEW = Platform(DIGEST + "c" * 64, DIGEST + "d" * 64, python="python3", cluster_domain="other.local")
OWNER = Owner("6f1c2f0e")


def build_deployment(**fields: object) -> LLMDeployment:
    return deployment(**{"model__source": "pvc://models/llama", **fields})


def store(record: Record, number: int = 1) -> Stored:
    """The record after a journey through the API server."""
    body = json.loads(json.dumps(record_manifest(record, number, build_deployment(), OWNER)))
    body["metadata"]["uid"] = f"uid-{number}"
    stored = read_record(body)
    assert stored is not None
    return stored


def templates(record: Record) -> dict[Role, str]:
    return {role: template.revision.template for role, template in record.rendered.items()}


def test_a_record_survives_the_journey_through_the_server() -> None:
    record = current_record(build_deployment(), OLD, "", ())
    assert store(record).record == record


def test_other_settings_of_the_installation_change_nothing_that_runs() -> None:
    """Ids left to the namespace, names of other projects, listeners of a newer template version."""
    before = current_record(build_deployment(), OLD, "", (), version=5)
    ids = PodIds(run_as_user=None, run_as_group=None, fs_group=None)
    batches = BatchSettings("batches")
    settings = replace(OLD, pod_ids=ids, metrics_compat="vllm", llmd_labels=True, json_logs=True, ledger="stdout")
    settings = replace(settings, batches=batches, identity=IdentitySettings(header_secret="front"))
    after = current_record(build_deployment(), settings, "", [store(before)])
    assert after == before
    asked = current_record(build_deployment(), settings, "now", [store(before)])
    assert asked.version == TEMPLATE_VERSION
    assert all(asked.rendered[role].pod != before.rendered[role].pod for role in POOL_ROLES)


def test_an_operator_with_other_images_and_flags_changes_nothing() -> None:
    record = current_record(build_deployment(), OLD, "", ())
    assert current_record(build_deployment(), NEW, "", [store(record)]) == record
    assert current_record(build_deployment(), NEW, "", [store(record)], version=99) == record


@pytest.mark.parametrize(
    "fields",
    [
        {"prefill__replicas": {"min": 3, "max": 9}},
        {"slo__ttft": {"target": "500ms", "percentile": 90.0}},
        {"rollout__maxSurge": 3},
        {"autoscaling__mode": "Off"},
        {"gateway__replicas": 3},
        {"gateway__autoscaling": {"max": 4}},
        {"decode__serviceAccountAnnotations": {"example.com/role": "reader"}},
        {"gateway__service": {"port": 8080}},
        {"gateway__openAccess": True},
        {"model__cache": {"size": "200Gi"}},
        {"model__credentialsSecret": "token"},
    ],
)
def test_what_moves_no_pod_makes_no_template(fields: dict[str, object]) -> None:
    record = current_record(build_deployment(), OLD, "", ())
    after = current_record(build_deployment(**fields), NEW, "", [store(record)])
    assert (templates(after), after.worker_image) == (templates(record), record.worker_image)


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({"decode__resources": {"memory": "2Gi"}}, {Role.DECODE}),
        ({"model__source": "pvc://models/other"}, set(POOL_ROLES)),
        ({"routing__disaggregation": "Never"}, {Role.PREFILL, Role.GATEWAY}),
        ({"routing__keepAnswers": False}, {Role.PREFILL}),
        ({"slo__ttft": {"target": "1s"}}, {Role.GATEWAY}),
        ({"model__generationDefaults": False}, {Role.GATEWAY}),
        ({"model__aliases": ["gpt-4o"]}, {Role.GATEWAY}),
        ({"kvTransfer__minBandwidth": "10GB/s"}, set(POOL_ROLES)),
        ({"gateway__limits": {"maxRequestDuration": "30s"}}, {*POOL_ROLES, Role.GATEWAY}),
        ({"decode__env": [{"name": "UCX_TLS", "value": "tcp"}]}, {Role.DECODE}),
        ({"gateway__limits": {"oversizedMaxTokens": "Clamp"}}, {Role.GATEWAY}),
        ({"gateway__limits": {"oversizedMaxTokens": "Refuse"}}, set()),
        ({"telemetry": {"tracing": {"endpoint": "http://collector:4318"}}}, {Role.GATEWAY}),
        ({"telemetry": {}}, set()),
        ({"gateway__resources": {"cpu": "2"}}, {Role.GATEWAY}),
        ({"decode__resources": {"limits": {"cpu": 2}}}, {Role.DECODE}),
        ({"model__fetch": {"resources": {"cpu": "2"}}}, set()),
        ({"podMetadata": {"labels": {"team": "x"}}}, {*POOL_ROLES, Role.GATEWAY}),
        ({"prefill__accelerator": {"resource": "nvidia.com/gpu"}}, set(POOL_ROLES)),
    ],
)
def test_an_edit_moves_what_it_concerns_and_keeps_the_recorded_images(
    fields: dict[str, object], moved: set[Role]
) -> None:
    record = current_record(build_deployment(), OLD, "", ())
    after = current_record(build_deployment(**fields), NEW, "", [store(record)])
    assert {role for role in after.rendered if templates(after)[role] != templates(record)[role]} == moved
    assert (after.worker_image, after.gateway_image) == (OLD.worker_image, OLD.gateway_image)
    assert OLD.worker_image in json.dumps(after.rendered[Role.DECODE].pod)


def test_what_an_accelerator_costs_moves_no_pod() -> None:
    plain, priced = (
        build_deployment(decode__accelerator={"resource": "nvidia.com/gpu", **cost})
        for cost in ({}, {"costPerHour": 3.5})
    )
    record = current_record(plain, OLD, "", ())
    assert current_record(priced, NEW, "", [store(record)]) == record


def test_a_record_from_before_a_field_was_there_moves_nothing() -> None:
    """The fields of Pods that were added last, taken out of a record again: an operator's upgrade restarts nothing."""
    record = current_record(build_deployment(), OLD, "", ())
    raw = json.loads(json.dumps(record_manifest(record, 1, build_deployment(), OWNER)))
    roles = raw["data"]["roles"]
    for role in ("prefill", "decode"):
        for name in ("env", "volumes", "sharedMemory", "hugepages", "arguments"):
            del roles[role]["inputs"]["pool"][name]
        for name in ("spread", "nodeAffinity", "podAffinity", "podAntiAffinity"):
            del roles[role]["inputs"]["pool"]["placement"][name]
    for name in ("resources", "placement", "priorityClassName"):
        del roles["gateway"]["inputs"]["gateway"][name]
    for name in ("aliases", "tracing"):
        del roles["gateway"]["inputs"][name]
    del roles["prefill"]["inputs"]["keepsAnswers"]
    raw["metadata"]["uid"] = "uid-1"
    old = read_record(raw)
    assert old is not None
    assert templates(current_record(build_deployment(), NEW, "", [old])) == templates(record)
    assert current_record(build_deployment(), NEW, "", [old]).gateway_image == OLD.gateway_image
    assert "c" * 64 not in json.dumps(current_record(build_deployment(), NEW, "", [old]).data())


def test_an_edit_that_needs_newer_images_moves_both_pools_together() -> None:
    record = current_record(build_deployment(), OLD, "", ())
    after = current_record(build_deployment(decode__resources={"memory": "2Gi"}), NEW, "", [store(record)], version=99)
    assert (after.version, after.worker_image) == (99, NEW.worker_image)
    assert all(templates(after)[role] != templates(record)[role] for role in POOL_ROLES)


def test_images_move_when_the_user_asks_for_it_and_once() -> None:
    record = current_record(build_deployment(), OLD, "", ())
    after = current_record(build_deployment(), NEW, "2026-11-21", [store(record)])
    assert after.worker_image == NEW.worker_image
    third = replace(NEW, worker_image=DIGEST + "e" * 64)
    assert current_record(build_deployment(), third, "2026-11-21", [store(record), store(after, 2)]) == after


def test_going_back_gives_back_the_very_same_templates() -> None:
    first = current_record(build_deployment(), OLD, "", ())
    second = current_record(build_deployment(model__source="pvc://models/other"), OLD, "", [store(first)])
    back = current_record(build_deployment(), NEW, "", [store(first), store(second, 2)])
    assert back == first
    assert (
        record_manifest(back, 3, build_deployment(), OWNER)["metadata"]
        == record_manifest(first, 1, build_deployment(), OWNER)["metadata"]
    )


def test_traces_that_are_switched_off_or_sampled_otherwise_are_an_edit() -> None:
    def traced(**fields: object) -> Any:
        return build_deployment(telemetry={"tracing": {"endpoint": "http://collector:4318", **fields}})

    on = current_record(traced(), OLD, "", ())
    assert current_record(traced(sampleRatio=0.01), NEW, "", [store(on)]) == on
    for edited in (build_deployment(), traced(sampleRatio=0.5)):
        assert templates(current_record(edited, NEW, "", [store(on)]))[Role.GATEWAY] != templates(on)[Role.GATEWAY]


def test_fields_that_one_of_two_versions_does_not_know_change_nothing() -> None:
    defaults: dict[str, Any] = {"pool": {"engine": {"blocks": None, "speed": 1}, "nodeSelector": {}}}
    recorded: dict[str, Any] = {"pool": {"engine": {"blocks": None}, "nodeSelector": {"a": "b"}, "former": 3}}
    wanted: dict[str, Any] = {"pool": {"engine": {"blocks": None, "speed": 1}, "nodeSelector": {"a": "b"}}}
    assert are_same_inputs(recorded, wanted, defaults)
    wanted["pool"]["engine"]["speed"] = 2
    assert not are_same_inputs(recorded, wanted, defaults), "set to another value than the default, it is an edit"


def test_a_key_that_the_user_takes_away_is_an_edit() -> None:
    defaults: dict[str, Any] = {"pool": {"nodeSelector": {}}}
    recorded: dict[str, Any] = {"pool": {"nodeSelector": {"a": "b", "c": "d"}}}
    assert not are_same_inputs(recorded, {"pool": {"nodeSelector": {"a": "b"}}}, defaults)


def test_a_record_that_cannot_be_read_counts_as_absent() -> None:
    good = json.loads(
        json.dumps(record_manifest(current_record(build_deployment(), OLD, "", ()), 1, build_deployment(), OWNER))
    )
    assert read_record(good) is not None
    spoils: tuple[Callable[[dict[str, Any]], object], ...] = (
        lambda body: body.pop("revision"),
        lambda body: body.pop("data"),
        lambda body: body["data"].pop("workerImage"),
        lambda body: body["data"]["roles"].pop("decode"),
        lambda body: body["data"]["roles"]["prefill"].pop("pod"),
        lambda body: body["data"]["roles"].__setitem__("prefill", 3),
    )
    for spoil in spoils:
        body = json.loads(json.dumps(good))
        spoil(body)
        assert read_record(body) is None


def test_older_records_stay_while_their_workers_run() -> None:
    first = current_record(build_deployment(), OLD, "", ())
    second = current_record(build_deployment(model__source="pvc://models/other"), OLD, "", [store(first)])
    records = [store(first), store(second, 2)]
    running = templates(first)[Role.DECODE]
    assert find_outdated(records, [running]) == ()
    assert [record.number for record in find_outdated(records, [templates(second)[Role.DECODE]])] == [1]
    assert find_outdated(records[:1], []) == (), "the newest always stays"


def leaves(model: type[Model], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all fields of a model that hold no further model of fixed fields."""
    for name, field in fields_of(model).items():
        inner = model_of(field.annotation)
        if inner is None or not fields_of(inner):
            yield (*path, name)
        else:
            yield from leaves(inner, (*path, name))


GPU = {"accelerator": {"resource": "nvidia.com/gpu"}}


def test_every_field_has_another_value_here() -> None:
    assert {".".join(path) for path in leaves(DeploymentSpec)} == set(VALUES)


@pytest.mark.parametrize("path", sorted(path for path, value in VALUES.items() if value is not None))
def test_a_field_that_a_template_is_rendered_from_is_among_its_inputs(path: str) -> None:
    """Otherwise an edit of it would never reach the Pods. The contrary would only roll without need."""
    is_degree = path.endswith("tensorParallel")  # which has one value alone with an accelerator
    pool = {**({} if is_degree else GPU), "replicas": {"min": 1, "max": 4}}
    targets = {name: {"target": "500ms", "percentile": 95.0} for name in ("ttft", "tpot")}
    base = {"prefill": pool, "decode": pool, "slo": targets}
    before = build_deployment(**json.loads(json.dumps(base)))
    after = build_deployment(**json.loads(json.dumps(base)), **{path.replace(".", "__"): VALUES[path]})
    assert before != after
    for role in (*POOL_ROLES, Role.GATEWAY):
        one, other = (current_record(spec_of, OLD, "", ()).rendered[role].pod for spec_of in (before, after))
        if one != other:
            assert not are_same_inputs(inputs(before, role), inputs(after, role), {}), f"{role} depends on {path}"


def test_a_restart_that_is_asked_for_makes_other_worker_templates_once_and_leaves_the_gateway_alone() -> None:
    spec_of = deployment(model__source="pvc://models/a")
    first = current_record(spec_of, OLD, "", ())
    stored = Stored("a", "1", 1, first)
    again = current_record(spec_of, OLD, "", (stored,), restart="mark")
    for role in POOL_ROLES:
        assert again.rendered[role].revision.template != first.rendered[role].revision.template
        assert again.rendered[role].revision.fit == first.rendered[role].revision.fit, "old and new may pair"
    assert again.rendered[Role.GATEWAY] == first.rendered[Role.GATEWAY]
    records = (stored, Stored("b", "2", 2, again))
    assert current_record(spec_of, OLD, "", records, restart="mark") == again
    assert current_record(spec_of, OLD, "", records) == again, "taken away, the annotation restarts nothing"
    assert (again.worker_image, again.upgrade) == (first.worker_image, first.upgrade)


def test_flips_begin_with_images_that_know_them_and_end_without_others() -> None:
    old, new = (replace(platform, operator_service="baton-operator") for platform in (OLD, NEW))
    plain = current_record(build_deployment(), old, "", ())
    assert "flips" not in json.dumps(plain.data())
    before = replace(plain, version=TEMPLATE_VERSION - 1)
    flexible = current_record(build_deployment(autoscaling__flips=True), new, "", [store(before)])
    assert flexible.worker_image == new.worker_image, "those before may have no such worker"
    assert templates(flexible)[Role.PREFILL] == templates(flexible)[Role.DECODE]
    assert (
        current_record(build_deployment(autoscaling__flips=True), new, "", [store(plain)]).worker_image
        == old.worker_image
    )
    records = [store(before), store(flexible, 2)]
    assert current_record(build_deployment(autoscaling__flips=True), old, "", records) == flexible
    after = current_record(build_deployment(), old, "", records)
    assert after.worker_image == new.worker_image
    assert templates(after)[Role.PREFILL] != templates(after)[Role.DECODE]
    assert current_record(build_deployment(), old, "", [*records, store(after, 3)]) == after


def test_an_edited_degree_rolls_its_pool_alone_to_images_that_have_ranks() -> None:
    first = current_record(build_deployment(), OLD, "", ())
    edited = current_record(build_deployment(decode__tensorParallel=2), NEW, "", [store(first)])
    assert edited.rendered[Role.PREFILL] == first.rendered[Role.PREFILL]
    assert templates(edited)[Role.DECODE] != templates(first)[Role.DECODE]
    assert edited.rendered[Role.DECODE].revision.fit == first.rendered[Role.DECODE].revision.fit, "old and new may pair"
    older = replace(first, version=TEMPLATE_VERSION - 1)
    assert current_record(build_deployment(), NEW, "", [store(older)]) == older, "the upgrade alone restarts nothing"
    moved = current_record(build_deployment(decode__tensorParallel=2), NEW, "", [store(older)])
    assert moved.worker_image == NEW.worker_image, "images of before have no ranks"
    back = [store(older), store(moved, 2)]
    whole = current_record(build_deployment(), NEW, "", back)
    assert "tensor-parallel" not in json.dumps(whole.rendered[Role.DECODE].pod)
