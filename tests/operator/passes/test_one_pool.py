"""A deployment that generates nothing: nothing of a decode pool is made, shown, counted or waited for."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

import pytest

from baton_control.errors import NotAllowedError
from baton_control.hashes import Revision
from baton_control.rollout import REASONS, RolloutPhase, Step
from baton_control.sizing.decision.scaling import Sized
from baton_control.sizing.decision.sizing_state import fresh, learn_and_size
from baton_control.sizing.inputs.deployment import sizing_spec, worker_prior
from baton_control.sizing.inputs.observations import Measurements, ObservedPool, Unknown
from baton_control.worker_specs import gateway_spec
from baton_gateway.settings import parse_settings
from baton_operator.kube.kinds import DEPLOYMENTS, POOLS, RECORDS, WORKERS
from baton_operator.kube.object_fields import Manifest, name_of
from baton_operator.objects.cluster import Owner, site_of
from baton_operator.objects.desired import standing_objects
from baton_operator.objects.pod_policy import PodPolicy
from baton_operator.objects.pods import worker_template
from baton_operator.passes.deployment_status import status_of
from baton_operator.passes.device_notes import device_notes
from baton_operator.passes.pass_result import PassResult
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.refused_env import find_refused_env
from baton_operator.passes.template_records import Stored, current_record
from baton_operator.schema.status import DeploymentStatus
from baton_testing.kube.calm_world import play
from baton_testing.kube.manifests import deployment
from baton_testing.kube.world import EMBEDS, MASTERS, NAME, PLATFORM, SPACE, Promise, World
from baton_wire.messages.values import POOL_ROLES, Role

WATCHING = dataclasses.replace(PLATFORM, monitors=True, alerts=True, monitoring_namespace="monitoring")
NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
ONE: dict[str, object] = {"model__tasks": EMBEDS, "model__source": "pvc://models/a"}


def status(world: World) -> dict[str, Any]:
    return dict(world.store.read(DEPLOYMENTS, SPACE, NAME)["status"])


def condition(world: World, kind: str) -> tuple[str, str, str]:
    found = next(entry for entry in status(world)["conditions"] if entry["type"] == kind)
    return found["status"], found["reason"], found["message"]


def named(entry: Manifest) -> tuple[str, str]:
    return str(entry["kind"]), name_of(entry)


def test_no_object_names_a_decode_pool() -> None:
    objects = standing_objects(deployment(**ONE), WATCHING, Owner("u1"), MASTERS)
    texts = [str(entry) for entry in objects]
    assert not [text for text in texts if "chat-decode" in text or "'baton.dev/role': 'decode'" in text]
    assert not [text for text in texts if "tpot_seconds" in text]
    both = standing_objects(deployment(model__source="pvc://models/a"), WATCHING, Owner("u1"), MASTERS)
    gone = {named(entry) for entry in both} - {named(entry) for entry in objects}
    kinds = ("NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "Service", "ServiceAccount")
    assert gone == {(kind, "chat-decode") for kind in kinds}


def test_no_process_looks_for_decode_workers() -> None:
    one = deployment(**ONE)
    gateway = gateway_spec(one, site_of(one, Role.GATEWAY, PLATFORM))
    worker = worker_template(one, Role.PREFILL, PLATFORM).spec
    assert parse_settings(list(gateway.argv[3:])).decode_discovery is None
    assert not [flag for flag in (*gateway.argv, *worker.argv) if flag.startswith("--decode-discovery")]


def test_a_pod_setting_is_refused_once_by_the_field_that_was_written() -> None:
    fields = ONE | {"prefill__env": [{"name": "UCX_TLS", "value": "tcp"}], "prefill__priorityClassName": "high"}
    with pytest.raises(NotAllowedError) as caught:
        PodPolicy().check(deployment(**fields))
    assert {problem.path.split(".")[1] for problem in caught.value.problems} == {"prefill"}
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    assert len(list(device_notes(deployment(**ONE, prefill__resourceClaims=claims)))) == 1


def test_variables_that_are_refused_by_now_restart_nothing_and_are_named_once() -> None:
    env: list[Manifest] = [{"name": "UCX_TLS", "value": "tcp"}]
    record = current_record(deployment(**ONE, prefill__env=env), PLATFORM, "", ())
    stored = Stored("r1", "u", 1, record)
    later = dataclasses.replace(PLATFORM, worker_image=PLATFORM.worker_image.replace("@", "-new@"))
    again = current_record(
        deployment(**ONE), later, "", [stored], version=record.version + 1, full_env={Role.PREFILL: env}
    )
    assert again.rendered[Role.PREFILL].revision == record.rendered[Role.PREFILL].revision
    assert find_refused_env([record], (), PodPolicy(env=()), (Role.PREFILL,)) == ("spec.prefill.env: UCX_TLS",)


def test_it_serves_is_edited_sleeps_and_wakes_with_one_pool() -> None:
    async def script(world: World) -> None:
        assert not [body for resource, body in world.store.everything() if "chat-decode" in body["metadata"]["name"]]
        assert condition(world, "Available") == ("True", "Serving", "requests are served")
        assert condition(world, "Ready")[0] == "True"
        assert set(status(world)) & {"prefill", "decode"} == {"prefill"}
        assert "decode" not in status(world)["revision"]
        old = {entry["metadata"]["name"] for entry in world.worker_sets(Role.PREFILL)}
        world.user_applies(model__tasks=EMBEDS, prefill__resources={"memory": "3Gi"})
        await world.settle()
        new = {entry["metadata"]["name"] for entry in world.worker_sets(Role.PREFILL)}
        assert not old & new
        assert condition(world, "Progressing")[1] == "RolloutComplete"
        zero = {"min": 0, "max": 1}
        world.user_applies(model__tasks=EMBEDS, prefill__replicas=zero, autoscaling__mode="Off")
        await world.settle()
        world.user_scales(POOLS, "chat-prefill", 0)
        await world.settle()
        asleep = "the pool is at zero, and in mode Off a request wakes no worker"
        assert condition(world, "Available") == ("False", "ScaledToZero", asleep)
        world.user_scales(POOLS, "chat-prefill", 1)
        await world.settle()
        assert condition(world, "Available")[0] == "True"
        assert not world.broken
        world.user_deletes(DEPLOYMENTS, NAME)
        await world.settle()
        assert not list(world.store.all(WORKERS, SPACE))
        assert not list(world.store.all(RECORDS, SPACE))

    play(script, promise=Promise(floor=0, most=4), model__tasks=EMBEDS)


def test_the_operator_believes_the_last_status_after_its_restart() -> None:
    async def script(world: World) -> None:
        before = condition(world, "Available")
        await world.restart()
        await world.settle()
        assert condition(world, "Available") == before

    play(script, model__tasks=EMBEDS)


def seen(workers: int, sized: Sized | None = None) -> PassResult:
    return PassResult(
        deployment=deployment(**ONE),
        generation=1,
        wanted=dict.fromkeys(POOL_ROLES, Revision("a", "x")),
        plans={Role.PREFILL: PoolPlan(workers, None), Role.DECODE: PoolPlan(0, None)},
        sized=sized,
        sets=(),
        groups=(),
        step=Step((), REASONS[RolloutPhase.COMPLETE], RolloutPhase.COMPLETE),
        gateways_ready=1,
        report=None,
        problems=(),
        wakes=True,
        is_reachable=True,
    )


def test_a_sleeping_pool_is_named_in_the_singular() -> None:
    found = {entry.type: entry for entry in status_of(seen(0), DeploymentStatus(), NOW).conditions}
    assert (found["Available"].status, found["Available"].message) == ("True", "the pool sleeps until a request comes")


def test_sizings_reasons_are_those_of_the_pool_that_there_is() -> None:
    sized = Sized({Role.PREFILL: 1, Role.DECODE: 0}, {Role.PREFILL: "prefill 1", Role.DECODE: "decode 0"}, holds=False)
    status_now = status_of(seen(1, sized), DeploymentStatus(), NOW)
    found = {entry.type: entry for entry in status_now.conditions}
    assert found["ScalingLimited"].message == "prefill 1"
    assert status_now.decode is None


def test_a_first_request_waits_for_one_worker_and_not_for_a_pair() -> None:
    one = deployment(**ONE, prefill__replicas={"min": 0, "max": 4})
    spec = sizing_spec(one)
    asleep = Measurements(Unknown("no report"), ObservedPool(0, 0), ObservedPool(0, 0))
    decision, _ = learn_and_size(spec, fresh(worker_prior(one, None), spec), asleep, (), 100.0, 0.0, parked=2)
    assert decision.pools[Role.PREFILL].reason == "prefill 0→1: 2 requests wait for a first worker"
