"""Sizing of pools whose workers have several ranks."""

from __future__ import annotations

import pytest

from baton_control.sizing.inputs.deployment import sizing_spec, worker_prior
from baton_testing.kube.manifests import deployment

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
