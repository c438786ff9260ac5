"""MFU and MBU against steps whose cost and time are given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from baton_engine.model.step_cost import CostModel
from baton_engine.scheduling.step_load import StepLoad
from baton_wire.messages.values import Role
from baton_wire.rules.hardware import Peak, peak_of
from baton_worker.reporting.utilisation import SMOOTHING_S, Utilisation

COSTS = CostModel(layer_weights=1_000, head_weights=100, pair_flops=4.0, weight_bytes=2_200, kv_token_bytes=8)
PEAK = Peak(flops=1e6, bytes_per_s=1e5)
DECODE = StepLoad(0, 0.0, 0, 4, 40)


def test_nothing_is_said_before_the_first_step_or_about_an_unknown_device() -> None:
    assert Utilisation(Role.DECODE, COSTS, PEAK).mfu is None
    unknown = Utilisation(Role.DECODE, COSTS, None)
    unknown.observe_step(DECODE, 0.1)
    assert (unknown.mfu, unknown.mbu) == (None, None)


def test_one_step_gives_its_own_ratio_however_short() -> None:
    seen = Utilisation(Role.DECODE, COSTS, PEAK)
    seen.observe_step(DECODE, 0.05)
    assert seen.mfu == pytest.approx((2 * (4 * 1_000 + 4 * 100) + 4 * 40) / 0.05 / 1e6)
    assert seen.mbu == pytest.approx((2_200 + 8 * 44) / 0.05 / 1e5)


def test_old_steps_are_forgotten_by_the_time_that_was_computed_since() -> None:
    seen = Utilisation(Role.DECODE, COSTS, PEAK)
    for _ in range(100):
        seen.observe_step(DECODE, 0.01)
    for _ in range(1_000):
        seen.observe_step(DECODE, 0.1)
    assert 5 * SMOOTHING_S < 0.1 * 1_000
    assert seen.mbu == pytest.approx((2_200 + 8 * 44) / 0.1 / 1e5, rel=1e-3)


def test_ranks_have_ratios_of_their_own_devices_and_the_worker_one_of_all() -> None:
    half = replace(COSTS, layer_weights=500, head_weights=50, pair_flops=2.0, weight_bytes=1_100, kv_token_bytes=4)
    seen = Utilisation(Role.DECODE, COSTS, PEAK, [half, COSTS])
    seen.observe_step(DECODE, 0.05)
    alone = Utilisation(Role.DECODE, COSTS, PEAK)
    alone.observe_step(DECODE, 0.05)
    assert alone.mbu is not None
    assert seen.mbu == pytest.approx(alone.mbu / 2)
    samples = {
        (family.name, sample.labels["rank"]): sample.value
        for family in seen.collect()
        for sample in family.samples
        if "rank" in sample.labels
    }
    assert samples["baton_rank_mbu_ratio", "0"] == pytest.approx(alone.mbu / 2)
    assert samples["baton_rank_mbu_ratio", "1"] == pytest.approx(alone.mbu)
    assert {name for name, _ in samples} == {"baton_rank_mbu_ratio", "baton_rank_mfu_ratio"}


def test_ranks_on_devices_whose_peak_is_unknown_have_no_ratios() -> None:
    seen = Utilisation(Role.DECODE, COSTS, None, [COSTS, COSTS])
    seen.observe_step(DECODE, 0.05)
    assert not [s for family in seen.collect() if family.name.startswith("baton_rank") for s in family.samples]


@pytest.mark.parametrize(
    ("name", "flops"),
    [("NVIDIA H200", 989.4e12), ("NVIDIA H100 80GB HBM3", 989.4e12), ("NVIDIA H100 PCIe", 756e12), ("Tesla T4", None)],
)
def test_devices_are_known_by_the_drivers_name(name: str, flops: float | None) -> None:
    peak = peak_of(name)
    assert (peak and peak.flops) == flops
