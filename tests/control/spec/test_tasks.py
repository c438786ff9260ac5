"""The tasks of a model: what they ask of the pools, and of the workers' flags."""

from __future__ import annotations

import pytest

from baton_control.errors import ManifestError
from baton_control.sizing.decision.sizing_state import fresh, learn_and_size
from baton_control.sizing.inputs.deployment import pool_bounds, sizing_spec, worker_prior
from baton_control.sizing.inputs.observations import Measurements, ObservedPool, Unknown
from baton_control.worker_specs import Device, Site, keeps_answers, worker_spec
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

EMBED = {"model__tasks": ["Embed"]}


def flags(**fields: object) -> list[str]:
    site = Site("python", "/m", "/k", "file:/p", "file:/d", Device.CPU, Device.CPU)
    return [flag for flag in worker_spec(deployment(**fields), Role.PREFILL, site).argv if flag.startswith("--tasks")]


def test_by_default_a_model_generates_and_workers_get_no_flag() -> None:
    spec = deployment().spec
    assert spec.model.generates
    assert spec.decode.replicas.max == 1
    assert flags() == []
    assert flags(model__tasks=["Generate", "Embed"]) == ["--tasks=generate,embed"]


def test_without_the_task_generate_the_decode_pool_has_no_workers() -> None:
    one = deployment(**EMBED, prefill__replicas={"min": 0, "max": 4}, autoscaling__scaleToZeroAfter="10m")
    assert (one.spec.decode.replicas.min, one.spec.decode.replicas.max) == (0, 0)
    assert (pool_bounds(one, Role.PREFILL).maximum, pool_bounds(one, Role.DECODE).maximum) == (4, 0)
    assert not keeps_answers(one)
    assert flags(**EMBED) == ["--tasks=embed"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**EMBED, "decode__replicas": {"min": 1, "max": 2}}, "spec.decode: .*must be absent"),
        ({**EMBED, "autoscaling__flips": True}, "spec.autoscaling.flips"),
        ({"model__tasks": []}, "spec.model.tasks"),
        ({"model__tasks": ["Embed", "Embed"]}, "spec.model.tasks"),
        ({"model__tasks": ["Classify"]}, r"spec.model.tasks\[0\].*Generate"),
        (
            {**EMBED, "autoscaling__schedules": [{"start": "08:00", "end": "09:00", "decode": 1}]},
            r"spec.autoscaling.schedules\[0\].decode",
        ),
    ],
)
def test_what_one_pool_cannot_have_is_refused_by_its_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        deployment(**fields)


def test_a_sleeping_pool_is_woken_alone_and_sized_without_a_decode_pool() -> None:
    one = deployment(**EMBED, prefill__replicas={"min": 0, "max": 4}, autoscaling__scaleToZeroAfter="10m")
    spec = sizing_spec(one)
    state = fresh(worker_prior(one, None), spec)
    asleep = Measurements(Unknown("no report"), ObservedPool(0, 0), ObservedPool(0, 0))
    decision, state = learn_and_size(spec, state, asleep, (), 100.0, 0.0, parked=2)
    assert {role: pool.workers for role, pool in decision.pools.items()} == {Role.PREFILL: 1, Role.DECODE: 0}
    awake = Measurements(Unknown("no report"), ObservedPool(1, 1), ObservedPool(0, 0))
    decision, _ = learn_and_size(spec, state, awake, (), 110.0, 0.0, parked=2)
    assert {role: pool.workers for role, pool in decision.pools.items()} == {Role.PREFILL: 1, Role.DECODE: 0}
