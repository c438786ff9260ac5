"""Metrics of tenants' limits, for the operator's page: the gateways' pages are public and name no tenant.

Label values are names of LLMTenants that have a limit, which their namespace's owner made. Names: docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from baton_control.names import Key
from baton_control.telemetry.limit_shares import LimitShares

LABELS = ("namespace", "deployment", "tenant", "measure")


class TenantUse(Collector):
    """Shows what tenants ask of their limits. `shares` reads the limits where they are divided."""

    def __init__(self, shares: Callable[[], Mapping[Key, LimitShares]]) -> None:
        self._shares = shares

    def collect(self) -> Iterable[Metric]:
        wanted = CounterMetricFamily(
            "baton_tenant_wanted", "What a tenant's requests spent or were refused of a limit", labels=LABELS
        )
        limits = GaugeMetricFamily("baton_tenant_limit", "A tenant's limit by the minute", labels=LABELS)
        for key, shares in sorted(self._shares().items()):
            for (tenant, measure), amount in sorted(shares.wanted.items()):
                wanted.add_metric([*key, tenant, measure.value], amount)
            for (tenant, measure), amount in sorted(shares.amounts().items()):
                limits.add_metric([*key, tenant, measure.value], amount)
        yield wanted
        yield limits
