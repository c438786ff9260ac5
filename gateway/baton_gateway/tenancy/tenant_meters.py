"""The meters of the tenants' limits in this process: what a request may take, what is left, when to try again. Pure.

A request is charged what it is expected to take when it arrives, and settled by what it took when it ends. A tenant
without a request and with full buckets has no meter, so memory follows the tenants that are active. The values here are
made for each request, so they are structs, which take a third of a dataclass's time, and none is in a cycle, so that
the garbage collector visits no meters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
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


class Cost(msgspec.Struct, frozen=True, gc=False):
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


class OverLimit(msgspec.Struct, frozen=True, gc=False):
    """The limit that refuses a request."""

    measure: LimitMeasure
    limit: int
    retry_after_s: float


class Remaining(msgspec.Struct, frozen=True, gc=False):
    """The rest of one limit."""

    limit: int
    remaining: int
    """Over all processes, if they are as loaded as this one."""
    reset_s: float
    """Seconds until the whole limit is there again."""


class _Gauge(msgspec.Struct, gc=False):
    """A limit by the minute, in this process."""

    measure: LimitMeasure
    bucket: TokenBucket
    spent: float = 0.0
    wanted: float = 0.0


class _Meter(msgspec.Struct, gc=False):
    """The gauges of one tenant."""

    tenant: str
    gauges: tuple[_Gauge, ...] = ()
    open_charges: int = 0
    limits: TenantLimits = NO_LIMITS
    """The limits that the gauges are of."""


class Charge(msgspec.Struct, gc=False):
    """The charge for one request, until `TenantMeters.settle`."""

    cost: Cost
    meter: _Meter | None
    """None: the tenant had no limit by the minute on arrival."""


SAME_SHARE = 1e-9
REPORTED_S = 5.0
"""A meter with use that was not reported stays for this long after its last request: longer than reports are apart, so
that without a link it goes as well."""
SWEPT_AT_ONCE = 3
"""Meters that each arrival looks at, so that idle ones go without a pass over all of them."""


class TenantMeters:
    """The meters of this process. `share`: this process's part of every limit until the operator gives it another."""

    def __init__(self, share: float = 1.0) -> None:
        self._share = share
        self._meters: dict[str, _Meter] = {}
        self._shares: dict[tuple[str, LimitMeasure], float] = {}
        """Shares that differ from `share`. They stay while a tenant is idle, until the operator forgets them."""
        self._unreported: dict[str, None] = {}
        """Tenants with use that `usage` has not listed, the one that waits longest first."""
        self._sweep: Iterator[str] = iter(())

    def __len__(self) -> int:
        return len(self._meters)

    def charge(self, tenant: Tenant, cost: Cost, now: float) -> Charge | OverLimit:
        """Charge a request, or say which limit refuses it. A refused request takes nothing."""
        self._drop_idle(now)
        meter = self._meter(tenant, now)
        if meter is None:
            return Charge(NOTHING, None)
        self._unreported[tenant.name] = None
        refused: OverLimit | None = None
        amounts = [cost.of(gauge.measure) for gauge in meter.gauges]
        for gauge, amount in zip(meter.gauges, amounts, strict=True):
            gauge.wanted += amount
            if amount and not gauge.bucket.holds(amount):
                wait_s = gauge.bucket.wait_s(amount)
                if refused is None or wait_s > refused.retry_after_s:
                    refused = OverLimit(gauge.measure, int(gauge.bucket.per_minute), wait_s)
        if refused is not None:
            return refused
        for gauge, amount in zip(meter.gauges, amounts, strict=True):
            gauge.bucket.take(amount)
            gauge.spent += amount
        meter.open_charges += 1
        return Charge(cost, meter)

    def settle(self, charge: Charge, cost: Cost, now: float) -> None:
        """A request ended and took `cost`; nothing, if it was refused for what other tenants do. Once per charge. If
        the tenant's limits were lifted meanwhile, those that it has now are left alone."""
        if (meter := charge.meter) is None:
            return
        meter.open_charges -= 1
        if cost != charge.cost:
            self._unreported[meter.tenant] = None
        for gauge in meter.gauges:
            more = cost.of(gauge.measure) - charge.cost.of(gauge.measure)
            gauge.bucket.refill(now)
            gauge.bucket.take(more)
            gauge.spent += more
            gauge.wanted += more

    def remaining(self, tenant: Tenant, now: float) -> Mapping[LimitMeasure, Remaining]:
        """Return the rest of each limit that the tenant has."""
        meter = self._meter(tenant, now)
        if meter is None:
            return {}
        return {gauge.measure: _remaining(gauge.bucket) for gauge in meter.gauges}

    def active(self) -> list[str]:
        """Return the names of the tenants that have taken something of their limits lately."""
        return list(self._meters)

    def used(self, name: str, now: float) -> dict[str, float]:
        """Return what a tenant has taken of each of its limits in this process, by the limit's name."""
        meter = self._meters.get(name)
        if meter is None:
            return {}
        for gauge in meter.gauges:
            gauge.bucket.refill(now)
        return {gauge.measure.value: gauge.bucket.capacity - gauge.bucket.level for gauge in meter.gauges}

    # Shares of other processes ----------------------------------------------------------------------------------------

    def usage(self, now: float, most: int) -> list[LimitUse]:
        """List the use since the last call of at most `most` limits. Those that are left out are the first ones next
        time, however much the others use meanwhile."""
        used: list[LimitUse] = []
        for name in tuple(self._unreported):
            meter = self._meters.get(name)
            for gauge in () if meter is None else meter.gauges:
                if not gauge.wanted and not gauge.spent:
                    continue
                if len(used) == most:
                    return used
                bucket = gauge.bucket
                bucket.refill(now)
                used.append(LimitUse(name, gauge.measure, bucket.per_minute, max(0.0, gauge.wanted), bucket.level))
                gauge.spent = gauge.wanted = 0.0
            del self._unreported[name]
        return used

    def apply(self, change: LimitShare, now: float) -> None:
        """Apply a share that the operator gives."""
        if abs(change.share - self._share) < SAME_SHARE:
            self._shares.pop((change.tenant, change.measure), None)
        else:
            self._shares[change.tenant, change.measure] = change.share
        meter = self._meters.get(change.tenant)
        for gauge in () if meter is None else meter.gauges:
            if gauge.measure is change.measure:
                gauge.bucket.refill(now)
                gauge.bucket.change_share(change.share, change.moved)

    def set_default_share(self, share: float, now: float) -> None:
        """Change the part of every limit that has no share of its own: other processes came or went."""
        if share == self._share:
            return
        self._share = share
        for name, meter in self._meters.items():
            for gauge in meter.gauges:
                if (name, gauge.measure) not in self._shares:
                    bucket = gauge.bucket
                    bucket.refill(now)
                    bucket.change_share(share, bucket.level * (share / bucket.share - 1) if bucket.share > 0 else 0.0)

    def forget_tenant(self, name: str) -> None:
        """A tenant is gone."""
        self._meters.pop(name, None)
        self._unreported.pop(name, None)
        for measure in RATES:
            self._shares.pop((name, measure), None)

    def _meter(self, tenant: Tenant, now: float) -> _Meter | None:
        """The tenant's meter, refilled and with its present limits; None: it has no limit by the minute."""
        meter = self._meters.get(tenant.name)
        if meter is None or meter.limits is not tenant.limits:
            return self._renewed(tenant, meter, now)
        for gauge in meter.gauges:
            gauge.bucket.refill(now)
        return meter

    def _renewed(self, tenant: Tenant, meter: _Meter | None, now: float) -> _Meter | None:
        """The meter of a tenant that has none, or whose limits may have changed."""
        limits = NO_RATES
        if tenant.limits != NO_LIMITS:  # most tenants have none
            limits = {measure: limit for measure in RATES if (limit := limit_of(measure, tenant.limits)) is not None}
        if not limits:
            if meter is not None:
                self.forget_tenant(tenant.name)
            return None
        if meter is None:
            meter = self._meters[tenant.name] = _Meter(tenant.name)
        kept = {gauge.measure: gauge for gauge in meter.gauges}
        meter.limits = tenant.limits
        meter.gauges = tuple(
            kept.get(measure) or self._full_gauge(tenant.name, measure, limit, now) for measure, limit in limits.items()
        )
        for gauge in meter.gauges:
            gauge.bucket.refill(now)
            if gauge.bucket.per_minute != limits[gauge.measure]:
                gauge.bucket.change_limit(limits[gauge.measure])
        return meter

    def _full_gauge(self, name: str, measure: LimitMeasure, limit: int, now: float) -> _Gauge:
        """A gauge with this process's part of a limit."""
        share = self._shares.get((name, measure), self._share)
        return _Gauge(measure, TokenBucket.full(limit, share, now))

    def _drop_idle(self, now: float) -> None:
        for _ in range(SWEPT_AT_ONCE):
            name = next(self._sweep, None)
            if name is None:
                self._sweep = iter(tuple(self._meters))
                return
            meter = self._meters.get(name)
            if meter is None or meter.open_charges:
                continue
            if _is_idle(meter, now, REPORTED_S if name in self._unreported else 0.0):
                self._unreported.pop(name, None)
                del self._meters[name]


def _is_idle(meter: _Meter, now: float, since_s: float) -> bool:
    """Return whether a meter has full buckets and was left alone for `since_s`."""
    for gauge in meter.gauges:  # noqa: SIM110 (a generator takes longer than the answer)
        if now - gauge.bucket.filled_s < since_s or not gauge.bucket.is_full(now):
            return False
    return True


def _remaining(bucket: TokenBucket) -> Remaining:
    limit, share = int(bucket.per_minute), bucket.share
    left = math.floor(bucket.level / share + 1e-6) if share > 0 else 0
    return Remaining(limit, max(0, min(limit, left)), bucket.full_after_s())
