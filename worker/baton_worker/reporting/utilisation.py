"""MFU and MBU: what the model's steps needed over what the device could have done in the time they took.

    MFU = FLOPs needed / (seconds · peak FLOP/s)        MBU = bytes needed / (seconds · peak bytes/s)

Numerators come from `baton_engine.model.step_cost`, peaks from data sheets (`baton_wire.rules.hardware`). Idle time
does not count: the gauges show how well the device is used while it computes, as means over the last seconds of
computing. The rates of the counters show how well it is used overall.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton_engine.model.step_cost import CostModel, StepCost
from baton_engine.scheduling.step_load import StepLoad
from baton_wire.messages.values import Role
from baton_wire.rules.hardware import Peak

SMOOTHING_S: Final = 10.0
"""Seconds of computing after which a step's weight has fallen to 1/e."""


class DeviceRates:
    """The rates of one device as means over the last seconds of computing, and their shares of its peak."""

    def __init__(self, costs: CostModel, peak: Peak | None) -> None:
        """`costs`: of what this device computes of each step."""
        self._costs = costs
        self._peak = peak
        self._weight = self._flops_per_s = self._bytes_per_s = 0.0

    def observe_step(self, load: StepLoad, seconds: float) -> StepCost:
        """Count a step. Returns what it needed."""
        cost = self._costs.of(load)
        share = 1.0 - math.exp(-seconds / SMOOTHING_S)
        self._weight += share * (1.0 - self._weight)
        self._flops_per_s += share * (cost.flops / seconds - self._flops_per_s)
        self._bytes_per_s += share * (cost.bytes / seconds - self._bytes_per_s)
        return cost

    @property
    def mfu(self) -> float | None:
        """None before the first step, and where the device's peak is unknown."""
        if self._peak is None or not self._weight:
            return None
        return self._flops_per_s / self._weight / self._peak.flops

    @property
    def mbu(self) -> float | None:
        """None before the first step, and where the device's peak is unknown."""
        if self._peak is None or not self._weight:
            return None
        return self._bytes_per_s / self._weight / self._peak.bytes_per_s


class Utilisation(Collector):
    """Fed by the engine's thread with every step, read at a scrape."""

    def __init__(self, role: Role, costs: CostModel, peak: Peak | None, ranks: Sequence[CostModel] = ()) -> None:
        """`peak`: of one device. `ranks`: the costs of each rank's share where several devices compute the steps; the
        ratios of the worker are then of all devices together."""
        self._labels = [role.value]
        self._whole = DeviceRates(costs, _together(peak, max(1, len(ranks))))
        self._ranks = [DeviceRates(share, peak) for share in ranks]
        self._flops = self._bytes = self._seconds = 0.0

    def observe_step(self, load: StepLoad, seconds: float) -> None:
        if seconds <= 0:
            return
        cost = self._whole.observe_step(load, seconds)
        self._flops += cost.flops
        self._bytes += cost.bytes
        self._seconds += seconds
        for rank in self._ranks:
            rank.observe_step(load, seconds)

    @property
    def mfu(self) -> float | None:
        """As in `DeviceRates`, of all devices of the worker."""
        return self._whole.mfu

    @property
    def mbu(self) -> float | None:
        """As in `DeviceRates`, of all devices of the worker."""
        return self._whole.mbu

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        yield self._counter("baton_model_flops", "Floating-point operations that the model's steps needed", self._flops)
        yield self._counter("baton_model_bytes", "Bytes of weights and KV that the model's steps needed", self._bytes)
        yield self._counter("baton_busy_seconds", "Time that engine steps took on the device", self._seconds)
        yield self._gauge("baton_mfu_ratio", "Of the device's peak FLOP/s, while it computes", self.mfu)
        yield self._gauge("baton_mbu_ratio", "Of the device's peak memory bandwidth, while it computes", self.mbu)
        text = "Of the peak of one rank's device, while it computes its share"
        yield self._by_rank("baton_rank_mfu_ratio", f"FLOP/s. {text}", [rank.mfu for rank in self._ranks])
        yield self._by_rank("baton_rank_mbu_ratio", f"Memory bandwidth. {text}", [rank.mbu for rank in self._ranks])

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=["role"])
        family.add_metric(self._labels, value)
        return family

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["role"])
        if value is not None:
            family.add_metric(self._labels, value)
        return family

    def _by_rank(self, name: str, text: str, values: Sequence[float | None]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["role", "rank"])
        for rank, value in enumerate(values):
            if value is not None:
                family.add_metric([*self._labels, str(rank)], value)
        return family


def _together(peak: Peak | None, devices: int) -> Peak | None:
    """The peak of several equal devices."""
    return peak and replace(peak, flops=peak.flops * devices, bytes_per_s=peak.bytes_per_s * devices)
