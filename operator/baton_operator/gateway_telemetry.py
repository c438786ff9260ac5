"""`telemetry.Telemetry` from the reports that gateways send over their links."""

from __future__ import annotations

from collections.abc import Callable

from baton_control.names import Key
from baton_control.sizing.inputs.deployment import sizing_spec
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import Latencies, TelemetryStore
from baton_operator.schema.status import LaneStatus, SloStatus
from baton_operator.telemetry import GatewayReport
from baton_wire.messages.measures import Lanes
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.sketch import Sketch

MIN_JUDGED = 20
"""Requests in the last minute before a target counts as met or missed."""


class GatewayTelemetry:
    def __init__(
        self,
        stores: Callable[[Key], TelemetryStore],
        clock: Callable[[], float],
        order: Callable[[Key, tuple[FlipOrder, ...]], None] = lambda key, flips: None,
    ) -> None:
        self._stores, self._clock, self._order = stores, clock, order

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        self._order(key, flips)

    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport | None:
        """The present report. A link's key ties it to the uid, so that no store has reports of a namesake."""
        spec, now, store = sizing_spec(deployment), self._clock(), self._stores(key)
        routable = store.routable(now)
        other_version = store.other_version(now)
        if routable is None and not store.has_links:
            return None if other_version is None else GatewayReport(None, other_version=other_version)
        seen = store.latencies(now)
        lanes = store.lanes()
        return GatewayReport(
            routable=routable,
            slo=_slo(seen, spec),
            slo_met=_met(seen, spec),
            lane=None if lanes is None else LaneStatus(lane=lanes.slowest, bandwidth=_rate(lanes)),
            transport_verified=None if lanes is None else lanes.too_slow == 0,
            transport_message="" if lanes is None else _message(lanes),
            flexible=store.flexible_workers(),
            linked=store.linked_templates(now),
            linked_in_s=store.linked_in_s(now),
            other_version=other_version,
            pairs=store.pairs(now),
        )


def _rate(lanes: Lanes) -> str:
    """Two digits: what is measured anew with every link must not write the status anew each time."""
    return f"{float(f'{lanes.slowest_bytes_per_s / 1e9:.2g}'):g} GB/s"


def _message(lanes: Lanes) -> str:
    slow = f", {lanes.too_slow} below kvTransfer.minBandwidth" if lanes.too_slow else ""
    return f"{lanes.measured} measured{slow}; the slowest: {lanes.slowest}, {_rate(lanes)}"


def _slo(seen: Latencies, spec: SizingSpec) -> SloStatus:
    targets = spec.targets
    return SloStatus(
        ttft=_text(seen.ttft, targets.ttft_share, targets.ttft_s),
        tpot=_text(seen.tpot, targets.tpot_share, targets.tpot_s),
    )


def _text(sketch: Sketch, share: float, target_s: float) -> str | None:
    value = sketch.quantile(share)
    return None if value is None else f"p{100 * share:g} {_rounded_ms(value)}/{_rounded_ms(target_s)}"


def _rounded_ms(seconds: float) -> str:
    return f"{float(f'{seconds * 1e3:.3g}'):g}ms"


def _met(seen: Latencies, spec: SizingSpec) -> bool | None:
    """True if the targets of all pools are met; None without enough requests."""
    shares = {role: seen.share_met(role, spec.targets.limit_s(role)) for role in spec.roles}
    if any(share is None or share[1] < MIN_JUDGED for share in shares.values()):
        return None
    return all(share is not None and share[0] >= spec.targets.share(role) for role, share in shares.items())
