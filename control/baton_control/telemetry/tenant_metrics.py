"""Metrics of tenants' limits, for the operator's page: the gateways' pages are public and name no tenant.

Label values are names of LLMTenants that have a limit, which their namespace's owner made. Names: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton_control.names import Key
from baton_control.telemetry.limit_shares import OTHERS, LimitShares
from baton_wire.messages.operator_link import LimitMeasure

LABELS = ("namespace", "deployment", "tenant", "measure")
MAX_NAMED = 2_000
"""Limits with series of their own. Those that are asked for later are one series by measure: the page stays small."""
Place = tuple[Key, str, LimitMeasure]


class TenantUse(Collector):
    """Shows what tenants ask of their limits. `shares` reads the limits where they are divided."""

    def __init__(self, shares: Callable[[], Mapping[Key, LimitShares]]) -> None:
        self._shares = shares
        self._named: set[Place] = set()
        self._unnamed: set[Place] = set()
        """Limits that came when `MAX_NAMED` had series of their own: none of them gets one later."""

    def collect(self) -> Iterable[Metric]:
        wanted = CounterMetricFamily(
            "baton_tenant_wanted", "What a tenant's requests spent or were refused of a limit", labels=LABELS
        )
        limits = GaugeMetricFamily("baton_tenant_limit", "A tenant's limit by the minute", labels=LABELS)
        rest: dict[tuple[Key, LimitMeasure], float] = {}
        by_deployment = self._shares()
        for places in (self._named, self._unnamed):
            places -= {place for place in places if place[0] not in by_deployment}
        for key, shares in sorted(by_deployment.items()):
            for (tenant, measure), amount in sorted(shares.wanted.items()):
                if self._is_named((key, tenant, measure)):
                    wanted.add_metric([*key, tenant, measure.value], amount)
                else:
                    rest[key, measure] = rest.get((key, measure), 0.0) + amount
            for (tenant, measure), amount in sorted(shares.amounts().items()):
                if (key, tenant, measure) in self._named:
                    limits.add_metric([*key, tenant, measure.value], amount)
        for (key, measure), amount in rest.items():
            wanted.add_metric([*key, OTHERS, measure.value], amount)
        yield wanted
        yield limits

    def _is_named(self, place: Place) -> bool:
        """Return whether a limit has series of its own. The first ones have, so that none moves to another series.
        `OTHERS` never has, since it is the series of the rest."""
        if place[1] == OTHERS:
            return False
        if place not in self._named and place not in self._unnamed:
            (self._named if len(self._named) < MAX_NAMED else self._unnamed).add(place)
        return place in self._named
