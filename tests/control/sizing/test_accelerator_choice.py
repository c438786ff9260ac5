"""The cheapest type of accelerator that keeps the percentile, and workers of two types while one follows the other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.accelerator_types import in_force, type_of, types_of
from baton_control.sizing.decision.accelerator_choice import (
    Candidate,
    choose,
    counted_in,
    equivalent,
    peak_per_s,
    total_of_types,
    worth,
)
from baton_control.sizing.inputs.deployment import worker_prior
from baton_control.sizing.inputs.memory import HISTORY, Interval, SizingMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_control.sizing.inputs.sizing_spec import Bounds
from baton_testing.kube.manifests import deployment
from baton_testing.kube.rule_cases import two_types
from baton_testing.sizing.builders import PerWorker
from baton_wire.messages.values import POOL_ROLES, Role

MIX = Mix((RequestShape(1000, 100),))
BOUNDS = Bounds(1, 20)


class Slow(PerWorker):
    """Nobody is in time, even alone: no number of workers helps, and one is said to do."""

    def required(self, role: Role, mix: Mix, rate_per_s: float) -> int:
        return 1

    def reachable_share(self, role: Role, mix: Mix) -> float:
        return 0.2


def candidates(*rows: tuple[str, float, float]) -> list[Candidate]:
    """(type, cost, requests per second) of a worker each; the first is in force."""
    return [Candidate(name, cost, PerWorker(per_s)) for name, cost, per_s in rows]


@pytest.mark.parametrize(
    ("rows", "rate", "chosen"),
    [
        ((("H200", 10.0, 10.0), ("H100", 6.0, 8.0)), 30.0, "H100"),
        ((("H200", 10.0, 10.0), ("H100", 6.0, 5.0)), 30.0, "H200"),
        ((("H200", 10.0, 10.0), ("H100", 6.0, 5.0)), 4.0, "H100"),
        ((("H200", 10.0, 10.0), ("H100", 9.0, 10.0)), 30.0, "H200"),
        ((("H200", 10.0, 10.0), ("A100", 1.0, 1.0)), 30.0, "H200"),
        ((("A100", 1.0, 1.0), ("H200", 10.0, 10.0)), 30.0, "H200"),
    ],
    ids=["cheaper", "dearer", "cheaper for little", "not by the margin", "too many", "too few of it"],
)
def test_the_cheapest_type_that_keeps_the_percentile_is_chosen(
    rows: tuple[tuple[str, float, float], ...], rate: float, chosen: str
) -> None:
    assert choose(Role.PREFILL, candidates(*rows), MIX, rate, BOUNDS, 60.0).type == chosen


def test_the_reason_has_workers_and_money_of_each() -> None:
    choice = choose(Role.DECODE, candidates(("H200", 10.0, 10.0), ("H100", 6.0, 8.0)), MIX, 30.0, BOUNDS, 60.0)
    assert choice.why == "decode on H100: H200 3 at 30 an hour, H100 4 at 24 an hour, for the most of half an hour"


def test_a_type_on_which_requests_are_late_even_alone_is_never_chosen() -> None:
    slow = Candidate("A100", 0.1, Slow(5.0))
    choice = choose(Role.DECODE, [*candidates(("H200", 10.0, 10.0)), slow], MIX, 30.0, BOUNDS, 60.0)
    assert choice.type == "H200"
    assert "A100 too few or too slow" in choice.why


def test_a_change_has_to_pay_for_both_types_during_a_start() -> None:
    rows = candidates(("H200", 10.0, 10.0), ("H100", 6.0, 8.0))
    assert choose(Role.PREFILL, rows, MIX, 30.0, BOUNDS, 600.0).type == "H100", "24 instead of 30, and 4 for a start"
    assert choose(Role.PREFILL, rows, MIX, 30.0, BOUNDS, 1200.0).type == "H200", "and 8 for a start"


@given(
    rows=st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.5, 50)), min_size=2, max_size=4),
    rate=st.floats(0.1, 100),
    startup_s=st.floats(0, 900),
)
def test_it_never_goes_back_and_forth_for_the_same_load(
    rows: list[tuple[float, float]], rate: float, startup_s: float
) -> None:
    types = candidates(*((f"T{place}", *row) for place, row in enumerate(rows)))
    first = choose(Role.PREFILL, types, MIX, rate, BOUNDS, startup_s).type
    turned = sorted(types, key=lambda candidate: candidate.type != first)
    assert choose(Role.PREFILL, turned, MIX, rate, BOUNDS, startup_s).type == first


@given(before=st.integers(1, 60), after=st.integers(1, 60))
def test_a_change_never_leaves_less_than_was_there_nor_buys_more_than_the_larger_pool(before: int, after: int) -> None:
    """`before` workers of the former type do as much as `after` of the new one, whichever are more."""
    worth_of_former = after / before
    for routable in range(after + 1):
        total = total_of_types(after, routable, worth_of_former)
        assert routable + (total - routable) * worth_of_former >= after - 1e-6
        assert total <= max(before, after) + 1
    assert total_of_types(after, 0, worth_of_former) == before
    assert total_of_types(after, after, worth_of_former) == after
    assert equivalent(0, {"H100": before}, lambda name: worth_of_former) == after


def test_what_was_asked_for_is_the_most_of_thirty_seconds_of_a_full_half_hour() -> None:
    calm, burst = Interval(1.0, 0.5, 0.2), Interval(9.0, 6.5, 0.2)
    history = (*(calm,) * (HISTORY - 1), burst)
    memory = SizingMemory(history=history)
    expected = (0.5 + 0.5 + 6.5) / 3
    assert peak_per_s(memory, Role.PREFILL, PerWorker(4.0), MIX, 10.0) == pytest.approx(4.0 * expected)
    assert peak_per_s(SizingMemory(history=history[1:]), Role.PREFILL, PerWorker(4.0), MIX, 10.0) is None
    counted = counted_in(memory, Role.PREFILL, 2.0)
    assert counted.history[-1] == Interval(9.0, 13.0, 0.2)
    assert worth(Role.PREFILL, PerWorker(2.0), PerWorker(4.0), MIX) == 0.5


def test_a_type_in_force_selects_its_nodes_and_stays_one_of_all() -> None:
    manifest = deployment(prefill__accelerator=two_types(), prefill__placement={"nodeSelector": {"a": "b"}})
    assert in_force(manifest, {}).spec == manifest.spec
    other = in_force(manifest, {Role.PREFILL: "H100", Role.DECODE: "H100"})
    pool = other.spec.prefill
    assert pool.placement.node_selector == {"a": "b", "example.com/gpu": "h100"}
    assert [kind.type for kind in types_of(pool)] == ["H100", "H200"]
    assert other.spec.decode == manifest.spec.decode
    assert in_force(other, {Role.PREFILL: "A100"}).spec.prefill.accelerator == pool.accelerator
    assert type_of(pool, "nvidia.com/gpu", pool.placement.node_selector) == "H100"
    assert type_of(pool, "nvidia.com/gpu", {"a": "b"}) == "H200"
    assert type_of(pool, "amd.com/gpu", {}) is None


def test_step_times_begin_with_those_of_the_type() -> None:
    accelerators = {role: {"resource": "nvidia.com/gpu", "type": "H200"} for role in POOL_ROLES}
    accelerators[Role.PREFILL]["type"] = "A100"
    mixed = worker_prior(
        deployment(**{f"{role}__accelerator": accelerator for role, accelerator in accelerators.items()}), None
    )
    plain = worker_prior(
        deployment(**{f"{role}__accelerator": {"resource": "nvidia.com/gpu"} for role in POOL_ROLES}), None
    )
    assert mixed.prefill.per_token_s > 2 * plain.prefill.per_token_s
    assert mixed.decode.fixed_s < plain.decode.fixed_s
    assert mixed.kv_capacity_tokens > plain.kv_capacity_tokens
