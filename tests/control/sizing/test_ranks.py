"""Sizing of pools whose workers have several ranks."""

from __future__ import annotations

import pytest

from baton_control.errors import ManifestError
from baton_control.sizing.decision.budget import affordable_bounds
from baton_control.sizing.inputs.deployment import sizing_spec, worker_prior
from baton_testing.kube.manifests import deployment
from baton_wire.messages.values import Role

BOUNDS = {"min": 1, "max": 4}


def test_a_first_guess_knows_the_degree_of_each_pool() -> None:
    whole, shared = (
        worker_prior(deployment(prefill__tensorParallel=prefill, decode__tensorParallel=decode), None)
        for prefill, decode in ((1, 1), (4, 2))
    )
    assert shared.prefill.per_token_s == pytest.approx(whole.prefill.per_token_s / 4, rel=0.1)
    assert whole.decode.fixed_s / 2 < shared.decode.fixed_s < whole.decode.fixed_s
    assert shared.prefill_capacity_tokens > shared.kv_capacity_tokens > whole.kv_capacity_tokens
    assert shared.accelerators == (4, 2)


def test_bounds_count_workers_and_ranks_on_cpus_take_nothing_of_a_budget() -> None:
    one, eight = (
        sizing_spec(deployment(prefill__replicas=BOUNDS, decode__replicas=BOUNDS, decode__tensorParallel=degree))
        for degree in (1, 8)
    )
    assert one == eight
    assert (eight.decode.minimum, eight.decode.maximum, eight.decode.accelerators) == (1, 4, 0)


def test_bounds_count_the_accelerators_of_all_ranks_and_what_they_cost() -> None:
    gpu = {"resource": "nvidia.com/gpu", "costPerHour": 3}
    given = sizing_spec(
        deployment(
            prefill={"replicas": BOUNDS, "accelerator": gpu, "tensorParallel": 4},
            decode={"replicas": BOUNDS, "accelerator": gpu},
            autoscaling__budget={"maxAccelerators": 9},
        )
    )
    assert [(pool.accelerators, pool.cost_per_hour) for pool in (given.prefill, given.decode)] == [(4, 12), (1, 3)]
    assert affordable_bounds(given, Role.PREFILL, partners=1).maximum == 2, "two workers are eight of nine accelerators"
    assert affordable_bounds(given, Role.DECODE, partners=2).maximum == 1


def test_a_budget_below_the_accelerators_of_all_ranks_is_refused() -> None:
    gpu = {"resource": "nvidia.com/gpu"}
    pools = {"prefill": {"accelerator": gpu, "tensorParallel": 4}, "decode": {"accelerator": gpu, "tensorParallel": 2}}
    assert deployment(**pools, autoscaling__budget={"maxAccelerators": 6})
    with pytest.raises(ManifestError, match="5 is not allowed: must be at least 6, what both pools take"):
        deployment(**pools, autoscaling__budget={"maxAccelerators": 5})
