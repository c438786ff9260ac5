"""The meters of the tenants' limits in this process: what a request may take, what is left, when to try again. Pure.

A request is charged what it is expected to take when it arrives, and settled by what it took when it ends. A tenant
without a request and with full buckets has no meter, so memory follows the tenants that are active.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import msgspec

from baton_gateway.requests.tenant import Tenant
from baton_gateway.tenancy.token_bucket import TokenBucket
from baton_wire.messages.operator_link import LimitMeasure, LimitShare, LimitUse
from baton_wire.tenant_table import NO_LIMITS, TenantLimits

RATES = (LimitMeasure.REQUESTS, LimitMeasure.INPUT, LimitMeasure.OUTPUT)
"""The limits by the minute."""
NO_RATES: Final[Mapping[LimitMeasure, int]] = MappingProxyType({})


def limit_of(measure: LimitMeasure, limits: TenantLimits) -> int | None:
    """A tenant's limit; None: it has none."""
    match measure:
        case LimitMeasure.REQUESTS:
            return limits.requests_per_minute
        case LimitMeasure.INPUT:
            return limits.input_tokens_per_minute
        case LimitMeasure.OUTPUT:
            return limits.output_tokens_per_minute
        case LimitMeasure.CONCURRENT:
            return limits.max_concurrent


class Cost(msgspec.Struct, frozen=True):
    """The cost of one request to its tenant's limits."""

    requests: float
    input_tokens: float
    output_tokens: float

    def of(self, measure: LimitMeasure) -> float:
        match measure:
            case LimitMeasure.REQUESTS:
                return self.requests
            case LimitMeasure.INPUT:
                return self.input_tokens
            case LimitMeasure.OUTPUT:
                return self.output_tokens
            case LimitMeasure.CONCURRENT:
                return 0.0


NOTHING = Cost(0, 0, 0)


@dataclass(frozen=True, slots=True)
class OverLimit:
    """The limit that refuses a request."""

    measure: LimitMeasure
    limit: int
    retry_after_s: float


@dataclass(frozen=True, slots=True)
class Remaining:
    """The rest of one limit."""

    limit: int
    remaining: int
    """Over all processes, if they are as loaded as this one."""
    reset_s: float
    """Seconds until the whole limit is there again."""


@dataclass(slots=True)
class _Gauge:
    bucket: TokenBucket
    spent: float = 0.0
    wanted: float = 0.0


@dataclass(slots=True)
class _Meter:
    gauges: dict[LimitMeasure, _Gauge] = field(default_factory=dict)
    open_charges: int = 0


@dataclass(slots=True)
class Charge:
    """The charge for one request, until `TenantMeters.settle`."""

    cost: Cost
    meter: _Meter | None
    """None: the tenant had no limit by the minute on arrival."""


SAME_SHARE = 1e-9
SWEPT_AT_ONCE = 4
"""Meters that each arrival looks at, so that idle ones go without a pass over all of them."""


class TenantMeters:
    """The meters of this process. `share`: this process's part of every limit until the operator gives it another."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._meters: dict[str, _Meter] = {}
        self._shares: dict[tuple[str, LimitMeasure], float] = {}
        """Shares that differ from `share`. They stay while a tenant is idle, until the operator forgets them."""
        self._sweep: Iterator[str] = iter(())

    def __len__(self) -> int:
        return len(self._meters)

    def charge(self, tenant: Tenant, cost: Cost, now: float) -> Charge | OverLimit:
        """Charge a request, or say which limit refuses it. A refused request takes nothing."""
        self._drop_idle(now)
        meter = self._meter(tenant, now)
        if meter is None:
            return Charge(NOTHING, None)
        refused: OverLimit | None = None
        for measure, gauge in meter.gauges.items():
            amount = cost.of(measure)
            gauge.wanted += amount
            if amount and not gauge.bucket.holds(amount):
                wait_s = gauge.bucket.wait_s(amount)
                if refused is None or wait_s > refused.retry_after_s:
                    refused = OverLimit(measure, int(gauge.bucket.per_minute), wait_s)
        if refused is not None:
            return refused
        for measure, gauge in meter.gauges.items():
            gauge.bucket.take(cost.of(measure))
            gauge.spent += cost.of(measure)
        meter.open_charges += 1
        return Charge(cost, meter)

    def settle(self, charge: Charge, cost: Cost, now: float) -> None:
        """A request ended and took `cost`; nothing, if it was refused for what other tenants do. Once per charge. If
        the tenant's limits were lifted meanwhile, those that it has now are left alone."""
        if (meter := charge.meter) is None:
            return
        meter.open_charges -= 1
        for measure, gauge in meter.gauges.items():
            more = cost.of(measure) - charge.cost.of(measure)
            gauge.bucket.refill(now)
            gauge.bucket.take(more)
            gauge.spent += more
            gauge.wanted += more

    def remaining(self, tenant: Tenant, now: float) -> Mapping[LimitMeasure, Remaining]:
        """Return the rest of each limit that the tenant has."""
        meter = self._meter(tenant, now)
        if meter is None:
            return {}
        return {measure: _remaining(gauge.bucket) for measure, gauge in meter.gauges.items()}

    def active(self) -> list[str]:
        """Return the names of the tenants that have taken something of their limits lately."""
        return list(self._meters)

    def used(self, name: str, now: float) -> dict[str, float]:
        """Return what a tenant has taken of each of its limits in this process, by the limit's name."""
        meter = self._meters.get(name)
        if meter is None:
            return {}
        for gauge in meter.gauges.values():
            gauge.bucket.refill(now)
        return {measure.value: gauge.bucket.capacity - gauge.bucket.level for measure, gauge in meter.gauges.items()}

    # Shares of other processes ----------------------------------------------------------------------------------------

    def usage(self, now: float, most: int) -> list[LimitUse]:
        """List the use since the last call of at most `most` limits; those that are left out come next time."""
        used: list[LimitUse] = []
        for name, meter in self._meters.items():
            for measure, gauge in meter.gauges.items():
                if not gauge.wanted and not gauge.spent:
                    continue
                if len(used) == most:
                    return used
                bucket = gauge.bucket
                bucket.refill(now)
                used.append(LimitUse(name, measure, bucket.per_minute, max(0.0, gauge.wanted), bucket.level))
                gauge.spent = gauge.wanted = 0.0
        return used

    def apply(self, change: LimitShare, now: float) -> None:
        """Apply a share that the operator gives."""
        if abs(change.share - self._share) < SAME_SHARE:
            self._shares.pop((change.tenant, change.measure), None)
        else:
            self._shares[change.tenant, change.measure] = change.share
        meter = self._meters.get(change.tenant)
        if meter is not None and (gauge := meter.gauges.get(change.measure)) is not None:
            gauge.bucket.refill(now)
            gauge.bucket.change_share(change.share, change.moved)

    def set_default_share(self, share: float, now: float) -> None:
        """Change the part of every limit that has no share of its own: other processes came or went."""
        if share == self._share:
            return
        self._share = share
        for name, meter in self._meters.items():
            for measure, gauge in meter.gauges.items():
                if (name, measure) not in self._shares:
                    bucket = gauge.bucket
                    bucket.refill(now)
                    bucket.change_share(share, bucket.level * (share / bucket.share - 1) if bucket.share > 0 else 0.0)

    def forget_tenant(self, name: str) -> None:
        """A tenant is gone."""
        self._meters.pop(name, None)
        for measure in RATES:
            self._shares.pop((name, measure), None)

    def _meter(self, tenant: Tenant, now: float) -> _Meter | None:
        """The tenant's meter, refilled and with its present limits; None: it has no limit by the minute."""
        limits = NO_RATES
        if tenant.limits != NO_LIMITS:  # most tenants have none, and this is asked twice for each request
            limits = {measure: limit for measure in RATES if (limit := limit_of(measure, tenant.limits)) is not None}
        if not limits:
            if tenant.name in self._meters:
                self.forget_tenant(tenant.name)
            return None
        meter = self._meters.setdefault(tenant.name, _Meter())
        for measure in meter.gauges.keys() - limits.keys():
            del meter.gauges[measure]
        for measure, limit in limits.items():
            gauge = meter.gauges.get(measure)
            if gauge is None:
                share = self._shares.get((tenant.name, measure), self._share)
                gauge = meter.gauges[measure] = _Gauge(TokenBucket.full(limit, share, now))
            gauge.bucket.refill(now)
            if gauge.bucket.per_minute != limit:
                gauge.bucket.change_limit(limit)
        return meter

    def _drop_idle(self, now: float) -> None:
        for _ in range(SWEPT_AT_ONCE):
            name = next(self._sweep, None)
            if name is None:
                self._sweep = iter(tuple(self._meters))
                return
            meter = self._meters.get(name)
            if meter is None or meter.open_charges:
                continue
            if all(_is_idle(gauge, now) for gauge in meter.gauges.values()):
                del self._meters[name]


def _is_idle(gauge: _Gauge, now: float) -> bool:
    gauge.bucket.refill(now)
    return gauge.bucket.level >= gauge.bucket.capacity


def _remaining(bucket: TokenBucket) -> Remaining:
    limit, share = int(bucket.per_minute), bucket.share
    left = math.floor(bucket.level / share + 1e-6) if share > 0 else 0
    return Remaining(limit, max(0, min(limit, left)), bucket.full_after_s())
