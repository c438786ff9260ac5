"""Which degree of tensor parallelism each pool gets: the fewest accelerators within the targets."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from baton_control.errors import ManifestError
from baton_control.sizing.decision.degree_choice import DegreeCost, PlannedLoad, cheapest, choose_degrees, mean_mix
from baton_control.sizing.inputs.model_shape import LLAMA_8B, LLAMA_70B
from baton_control.sizing.inputs.roofline import Degrees
from baton_control.sizing.inputs.sizing_spec import Targets
from baton_wire.messages.values import Role
from baton_wire.rules.hardware import A100, H200

MIX = mean_mix(1155, 211)


def load(tpot_s: float) -> PlannedLoad:
    return PlannedLoad(MIX, Targets(1.0, tpot_s), 4096, 1366)


def cost(degree: int, accelerator_s: float, *, fits: bool = True, share: float = 1.0) -> DegreeCost:
    return DegreeCost(degree, fits, share, accelerator_s)


@pytest.mark.parametrize(
    ("costs", "degree"),
    [
        ([cost(1, 1.0), cost(2, 1.2), cost(4, 1.5)], 1),
        ([cost(1, 2.0), cost(2, 1.2), cost(4, 1.5)], 2),
        ([cost(1, 1.02), cost(2, 1.0), cost(4, 1.5)], 1),
        ([cost(1, 0.5, fits=False), cost(2, 1.2), cost(4, 1.5)], 2),
        ([cost(1, 0.5, share=0.7), cost(2, 1.2, share=0.999), cost(4, 1.5)], 2),
        ([cost(1, inf, share=0.0), cost(2, inf, share=0.0)], 2),
    ],
)
def test_the_smallest_degree_that_is_as_good_as_the_best_is_taken(costs: list[DegreeCost], degree: int) -> None:
    """Of those that have room for the weights and are fast enough alone; where none is, the fastest."""
    assert cheapest(costs).degree == degree


def test_a_small_model_stays_whole_and_a_tight_target_splits_a_large_one_more_than_a_wide_one() -> None:
    small = choose_degrees(LLAMA_8B, H200, load(0.025))
    assert small.degrees == Degrees(1, 1)
    tight, wide = (choose_degrees(LLAMA_70B, H200, load(tpot)) for tpot in (0.010, 0.080))
    assert tight.degrees.decode > wide.degrees.decode == 2
    assert tight.degrees.prefill == wide.degrees.prefill == 2, "TPOT says nothing about prefill"
    assert "misses TPOT 10 ms" in tight.reasons[Role.DECODE]
    assert "1 has too little memory" in wide.reasons[Role.PREFILL]


def test_only_degrees_that_the_model_allows_are_chosen() -> None:
    choice = choose_degrees(LLAMA_70B, H200, load(0.010), (1, 2, 4))
    assert choice.degrees.decode == 4
    assert "8" not in choice.reasons[Role.DECODE]


def test_weights_that_no_number_of_accelerators_holds_are_refused() -> None:
    small = replace(A100, memory_bytes=60e9)
    with pytest.raises(ManifestError, match=r"tensorParallel: .* 2 a100 have 108 GB"):
        choose_degrees(LLAMA_70B, small, load(0.025), (1, 2))


def test_a_target_that_no_degree_meets_takes_the_fastest_and_says_so() -> None:
    choice = choose_degrees(LLAMA_70B, H200, load(0.0001))
    assert choice.degrees.decode == 8
    assert choice.reasons[Role.DECODE] == "decode 8 ranks (the fastest; none keeps TPOT 0.1 ms)"
