"""Which size is enough for the last half hour, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from baton_control.sizing.decision.backtest import (
    Load,
    ObservedLateness,
    allowed_late_share,
    fewest_by_clients,
    fewest_enough,
    late_share,
    observed_lateness,
    with_lateness,
)
from baton_control.sizing.inputs.memory import PoolMemory
from baton_control.sizing.inputs.mix import Mix
from baton_control.sizing.inputs.observations import Lateness, ObservedPool
from baton_control.sizing.inputs.request_shape import RequestShape
from baton_testing.sizing.builders import PerWorker, spec
from baton_wire.messages.values import Role

MIX = Mix((RequestShape(1000, 100),))
CALM, SPIKE = 4.0, 20.0
"""Requests per second; a worker does five."""


class Unreachable(PerWorker):
    """One prompt in ten is late even when it is alone."""

    def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float:
        return 0.9 * super().share_met(role, mix, rate_per_s, workers)

    def reachable_share(self, role: Role, mix: Mix) -> float:
        return 0.9 * super().reachable_share(role, mix)


def loads(rates: list[float], mix: Mix = MIX) -> list[Load]:
    return [Load(rate, rate, mix) for rate in rates]


def fewest(
    rates: list[float], least: int = 1, most: int = 6, sizer: PerWorker | None = None, share: float = 1.0
) -> int:
    return fewest_enough(Role.PREFILL, loads(rates), least, most, sizer or PerWorker(), share)


@pytest.mark.parametrize(("spikes", "wanted"), [(0, 1), (2, 1), (3, 2), (4, 3), (30, 4)])
@pytest.mark.parametrize("sizer", [PerWorker(), Unreachable()])
def test_the_simulator_says_which_size_keeps_the_percentile_over_all_loads(
    spikes: int, wanted: int, sizer: PerWorker
) -> None:
    """One worker loses three quarters of a spike, two half of it: of two spikes 4.0 % of all requests, of three 5.9 and
    3.9 %, of four 5.1 % with two workers. Who is late even when alone changes nothing."""
    assert fewest([CALM] * (180 - spikes) + [SPIKE] * spikes, sizer=sizer) == wanted


def test_it_stays_between_the_least_and_the_most_that_are_asked_about() -> None:
    assert fewest([CALM] * 180, least=3) == 3
    assert fewest([SPIKE] * 180, most=2) == 2


def test_who_goes_leaves_half_of_what_may_be_late() -> None:
    rates = [CALM] * 178 + [SPIKE] * 2
    assert fewest(rates) == 1
    assert fewest(rates, share=0.5) == 3, "two workers lose 2.7 %, three 1.3"


def test_each_request_counts_once_however_long_it_is() -> None:
    """Books are a tenth of the requests of letters and as much work. One worker is too few for them, two for nobody."""
    letters, books = MIX, Mix((RequestShape(10_000, 100),))
    day = [*[Load(40.0, 4.0, letters)] * 90, *[Load(0.4, 8.0, books)] * 90]
    assert fewest_enough(Role.PREFILL, day, 1, 6, PerWorker()) == 1, (
        "a third of the books are late, 0.4 % of all requests"
    )
    assert fewest_enough(Role.PREFILL, day[90:], 1, 6, PerWorker()) == 2
    many = [*day[:90], *[Load(10.0, 8.0, books)] * 90]
    assert fewest_enough(Role.PREFILL, many, 1, 6, PerWorker()) == 2, "7.5 % of all requests"


def test_where_no_request_is_late_the_lower_loads_are_not_asked_about() -> None:
    """180 loads of each of three mixes; the answer is that of asking about all."""

    class Counting(PerWorker):
        asked = 0

        def share_met(self, role: Role, mix: Mix, rate_per_s: float, workers: int) -> float:
            self.asked += 1
            return super().share_met(role, mix, rate_per_s, workers)

    random = np.random.default_rng(5)
    for _ in range(20):
        rates = random.uniform(0.0, 14.0, (3, 180)) * random.uniform(0.3, 1.0, (3, 1))
        every = [load for row in rates for load in loads(row.tolist(), Mix((RequestShape(1000, 100),)))]
        sizer = Counting()
        for workers in (1, 2, 3):
            late = sum(
                load.rate_per_s * (1.0 - sizer.share_met(Role.PREFILL, MIX, load.rate_per_s, workers)) for load in every
            )
            is_kept = late <= 0.05 * sum(load.rate_per_s for load in every)
            sizer.asked = 0
            assert (fewest_enough(Role.PREFILL, every, workers, workers + 1, sizer) == workers) == is_kept
            late_loads = sum(load.rate_per_s > 5.0 * workers for load in every)
            assert sizer.asked <= late_loads + 3


def test_the_share_that_is_late_is_told_as_far_as_it_had_to_be_found_out() -> None:
    late = late_share(Role.PREFILL, loads([CALM] * 5 + [SPIKE]), 2, PerWorker())
    assert 0.05 < late <= 0.25
    assert late_share(Role.PREFILL, loads([0.0]), 2, PerWorker()) == 0.0


def remembered(*seen: tuple[int, float]) -> PoolMemory:
    """(workers that were routable, share of a hundred requests that were late) in each interval."""
    memory = PoolMemory()
    for routable, late in seen:
        memory = with_lateness(memory, ObservedPool(9, routable), Lateness(100, 100 * late))
    return memory


def least(memory: PoolMemory, sizer: PerWorker | None = None, workers: int = 6) -> int:
    return fewest_by_clients(
        spec(), memory, workers, allowed_late_share(Role.PREFILL, loads([CALM]), sizer or PerWorker())
    )


def test_a_size_with_which_clients_saw_too_many_of_all_requests_late_is_too_few_and_so_is_a_smaller_one() -> None:
    assert least(remembered(*[(3, 0.04)] * 20)) == 1
    assert least(remembered(*[(3, 0.06)] * 20)) == 4
    assert least(remembered(*[(3, 0.06)] * 20), workers=3) == 1, "nobody asks whether more are needed"
    assert least(remembered(*[(3, 0.06)] * 10, *[(4, 0.0)] * 10)) == 1, "of all requests it is less"
    assert least(remembered(*[(1, 0.3)] * 10, *[(3, 0.04)] * 20)) == 2
    assert least(remembered(*[(1, 0.06)] * 10, *[(3, 0.06)] * 10)) == 2, "who was late with three is so with one"


def test_of_prompts_that_are_late_even_when_alone_clients_may_see_as_many() -> None:
    assert least(remembered(*[(3, 0.12)] * 20)) == 4
    assert least(remembered(*[(3, 0.12)] * 20), Unreachable()) == 1


def test_who_was_late_behind_a_start_counts_for_those_who_served_before_it() -> None:
    spike = remembered(*[(1, 0.0)] * 6, (1, 0.9), (4, 0.9), (4, 0.5), *[(4, 0.0)] * 20)
    assert least(spike) == 2, "four were never too few, one was"


def test_nothing_is_remembered_of_unknown_workers_or_unknown_clients() -> None:
    memory = remembered((2, 0.0))
    assert with_lateness(memory, ObservedPool(2, None), Lateness(10, 5.0)) is memory
    assert with_lateness(memory, ObservedPool(2, 2), None) is memory


SPIKES = [CALM] * 160 + [SPIKE] * 20
"""Four workers keep the percentile by the simulator."""


@pytest.mark.parametrize(
    ("served", "late_per_s", "wanted"),
    [
        (1, 0.0, 1),  # nobody was late with one
        (1, 40.0, 1),  # 3.8 % of all requests were
        (1, 60.0, 4),  # 5.8 % were, which three workers lose as well by the simulator
        (3, 0.0, 3),  # of fewer clients know nothing, and they are not asked about as long as the simulator says no
    ],
)
def test_where_no_more_served_no_more_are_late_than_clients_saw(served: int, late_per_s: float, wanted: int) -> None:
    seen = ObservedLateness([served] * 180, {served: late_per_s})
    assert fewest_enough(Role.PREFILL, loads(SPIKES), 1, 6, PerWorker()) == 4
    assert fewest_enough(Role.PREFILL, loads(SPIKES), 1, 6, PerWorker(), observed=seen) == wanted


def test_what_clients_may_not_have_told_of_yet_the_simulator_is_asked_about() -> None:
    calm_alone = ObservedLateness([1] * 160, {1: 0.0})
    assert fewest_enough(Role.PREFILL, loads(SPIKES), 1, 6, PerWorker(), observed=calm_alone) == 4
    by_two = ObservedLateness([1] * 160 + [None] * 20, {1: 0.0})
    assert fewest_enough(Role.PREFILL, loads(SPIKES), 1, 6, PerWorker(), observed=by_two) == 4


def test_with_what_clients_saw_the_answer_is_that_of_asking_about_all() -> None:
    random = np.random.default_rng(6)
    mixes = Mix((RequestShape(1000, 100),)), Mix((RequestShape(1000, 100),))
    for _ in range(40):
        every = [Load(rate, rate, mixes[int(random.integers(2))]) for rate in random.uniform(0.0, 14.0, 60)]
        sizes = [None if random.uniform() < 0.2 else int(random.integers(1, 4)) for _ in range(50)]
        seen = ObservedLateness(sizes, {size: float(random.uniform(0.0, 20.0)) for size in (1, 2, 3)})
        for workers in (1, 2, 3):
            late = dict.fromkeys((None, 1, 2, 3), 0.0)
            for load, size in zip(every, [*sizes, *[None] * 10], strict=True):
                known = size if size is not None and size <= workers else None
                late[known] += load.rate_per_s * (
                    1.0 - PerWorker().share_met(Role.PREFILL, MIX, load.rate_per_s, workers)
                )
            total = late[None] + sum(min(late[size], seen.late_per_s[size]) for size in (1, 2, 3))
            is_kept = total <= 0.05 * sum(load.rate_per_s for load in every)
            enough = fewest_enough(Role.PREFILL, every, workers, workers + 1, PerWorker(), observed=seen)
            assert (enough == workers) == is_kept


def test_clients_tell_of_what_came_a_start_ago_with_the_fewest_of_its_minute() -> None:
    memory = remembered(*[(1, 0.0)] * 4, (1, 0.6), *[(3, 0.6)] * 5, *[(3, 0.0)] * 10)
    seen = observed_lateness(spec(), memory, 22, 8)
    assert seen.sizes == [None, None, *[1] * 11, 3], "two intervals before the first report, eight that may still run"
    assert seen.late_per_s[1] == pytest.approx(6.0), "360 requests in six intervals' minutes are one a second"
    assert seen.late_per_s[3] == 0.0
