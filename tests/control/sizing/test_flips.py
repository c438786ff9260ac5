"""Flips: what one pool needs and the other can spare changes role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_control.pool_flips import Flips
from baton_control.sizing.decision.flips import find_flips, sizes_after_flips, sizes_with_starts
from baton_control.sizing.decision.slo import SloDecision, size
from baton_control.sizing.inputs.deployment import FLIP_S, sizing_spec
from baton_control.sizing.inputs.memory import SizingMemory
from baton_control.sizing.inputs.observations import (
    Arrivals,
    Measurement,
    Measurements,
    ObservedPool,
    ProvenZero,
    Unknown,
)
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Bounds, SizingSpec, Targets
from baton_testing.kube.manifests import deployment
from baton_testing.sizing.builders import PerWorker, seen, spec
from baton_wire.messages.values import POOL_ROLES, Role

PREFILL, DECODE = POOL_ROLES


def pools(prefill: int, decode: int, routable: int | None = None) -> Measurements:
    of = [ObservedPool(count, count if routable is None else routable) for count in (prefill, decode)]
    return Measurements(ProvenZero(), of[0], of[1])


def test_who_is_short_now_gets_what_the_other_does_not_need() -> None:
    assert sizes_after_flips(pools(3, 8), {PREFILL: 6, DECODE: 4}, {PREFILL: 7, DECODE: 4}.__getitem__) == {
        PREFILL: 6,
        DECODE: 5,
    }
    assert sizes_after_flips(pools(3, 8), {PREFILL: 9, DECODE: 4}, {PREFILL: 9, DECODE: 4}.__getitem__) == {
        PREFILL: 7,
        DECODE: 4,
    }
    assert sizes_after_flips(pools(8, 3), {PREFILL: 2, DECODE: 5}, {PREFILL: 3, DECODE: 5}.__getitem__) == {
        PREFILL: 6,
        DECODE: 5,
    }


def test_nothing_changes_role_when_both_are_short_or_nobody_is() -> None:
    here = {PREFILL: 3, DECODE: 8}
    assert sizes_after_flips(pools(3, 8), {PREFILL: 6, DECODE: 9}, {PREFILL: 6, DECODE: 9}.__getitem__) == here
    assert sizes_after_flips(pools(3, 8), {PREFILL: 3, DECODE: 2}, {PREFILL: 3, DECODE: 2}.__getitem__) == here


def test_one_worker_that_serves_stays_and_who_starts_is_not_flipped() -> None:
    needs = {PREFILL: 9, DECODE: 1}
    assert sizes_after_flips(pools(3, 8, routable=3), needs, needs.__getitem__) == {PREFILL: 5, DECODE: 6}
    assert find_flips(pools(3, 8, routable=3), {PREFILL: 9, DECODE: 2}) == Flips(DECODE, 2)
    unknown = Measurements(ProvenZero(), ObservedPool(3, 3), ObservedPool(8, None))
    assert sizes_after_flips(unknown, needs, needs.__getitem__) == {PREFILL: 3, DECODE: 8}
    assert sizes_after_flips(unknown, {PREFILL: 1, DECODE: 9}, {PREFILL: 1, DECODE: 9}.__getitem__) == {
        PREFILL: 3,
        DECODE: 8,
    }
    assert find_flips(unknown, {PREFILL: 9, DECODE: 2}) is None


def test_starts_are_those_that_both_need_together_and_stops_those_of_each_pool() -> None:
    flipped = {PREFILL: 6, DECODE: 5}
    assert sizes_with_starts(pools(3, 8), flipped, {PREFILL: 9, DECODE: 8}, 13) == {PREFILL: 8, DECODE: 5}
    assert sizes_with_starts(pools(3, 8), flipped, {PREFILL: 9, DECODE: 8}, 17) == {PREFILL: 9, DECODE: 8}
    assert sizes_with_starts(pools(3, 8), flipped, {PREFILL: 9, DECODE: 8}, 2) == flipped, "nobody is stopped for it"
    assert sizes_with_starts(pools(3, 8), flipped, {PREFILL: 3, DECODE: 4}, 11) == {PREFILL: 6, DECODE: 4}


def test_flips_are_what_one_loses_and_the_other_gains() -> None:
    assert find_flips(pools(3, 8), {PREFILL: 6, DECODE: 5}) == Flips(DECODE, 3)
    assert find_flips(pools(8, 3), {PREFILL: 6, DECODE: 9}) == Flips(PREFILL, 2)
    assert find_flips(pools(3, 8), {PREFILL: 3, DECODE: 5}) is None
    assert Flips(PREFILL, 2).taker is DECODE


class Prompts(PerWorker):
    """Long prompts need prefill, long answers need decode; each in proportion to their length."""

    def required(self, role: Role, mix: object, rate_per_s: float) -> int:
        return PerWorker.required(self, role, mix, rate_per_s * (1.0 if role is PREFILL else 0.2))  # type: ignore[arg-type]


def turned(a_spec: SizingSpec, running: Measurement | None = None) -> SloDecision:
    """A step in prompts while decode has more workers than it needs. running: answers, as told at the step."""
    memory = SizingMemory()
    now = 0.0
    for _ in range(20):
        now += 10.0
        memory = size(
            a_spec, seen(Arrivals(60, 10.0, (RequestShape(100, 900),) * 40), (2, 8)), memory, now, Prompts()
        ).memory
    stepped = seen(Arrivals(300, 10.0, (RequestShape(100, 50),) * 40), (2, 8))
    stepped = stepped if running is None else replace(stepped, running=running)
    return size(a_spec, stepped, memory, now + 10.0, Prompts())


def test_a_turn_of_the_load_is_answered_by_flips_and_starts_only_what_is_left() -> None:
    alone, joint = turned(spec()), turned(spec(flip_s=2.0))
    assert alone.flips is None
    assert alone.pools[DECODE].workers == 8, "the window holds it"
    assert joint.flips is not None
    assert joint.flips.giver is DECODE
    assert joint.pools[DECODE].workers == 8 - joint.flips.workers
    assert sum(pool.workers for pool in joint.pools.values()) < sum(pool.workers for pool in alone.pools.values())
    assert "prefill needs" in joint.pools[DECODE].reason
    assert "are needed now, decode gives" in joint.pools[PREFILL].reason


def test_a_pool_whose_answers_nobody_knows_gives_no_worker_away() -> None:
    joint = turned(spec(flip_s=2.0), Unknown("no report"))
    assert joint.flips is None
    assert joint.pools[DECODE].workers == 8
    assert joint.pools[PREFILL].workers > 2, "it starts workers instead"


def test_a_flip_is_no_order_for_a_new_worker() -> None:
    joint = turned(spec(flip_s=2.0))
    assert joint.flips is not None
    started = joint.pools[PREFILL].workers - 2 - joint.flips.workers
    assert sum(count for _, count in joint.memory.pools[PREFILL].orders) == started


def test_workers_of_unlike_pools_do_not_flip() -> None:
    with pytest.raises(AssertionError, match="alike"):
        SizingSpec(Bounds(1, 4, 1), Bounds(1, 4, 2), Targets(0.5, 0.025), flip_s=2.0)


def test_a_deployment_says_whether_its_workers_flip() -> None:
    gpu = {"replicas": {"min": 1, "max": 3}, "accelerator": {"resource": "nvidia.com/gpu"}}
    alike, plain = {"autoscaling__flips": True}, {"prefill": gpu, "decode": gpu}
    assert sizing_spec(deployment(**plain)).flip_s is None
    assert sizing_spec(deployment(**plain, **alike)).flip_s == FLIP_S
    unlike = sizing_spec(deployment(prefill=gpu, decode={"replicas": gpu["replicas"]}, **alike))
    assert unlike.flip_s is None, "its templates are refused"
