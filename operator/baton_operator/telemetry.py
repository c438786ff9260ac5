"""Gateways' reports about a deployment, as a pass reads them. Values only; `gateway_telemetry` fills them.

Reading a report never waits: the answer is the last report, or None when nothing is known now.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from baton_control.names import Key
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.pairs import Pairs
from baton_control.telemetry.store import FlexibleWorker
from baton_operator.schema.status import LaneStatus, SloStatus
from baton_wire.messages.operator_link import FlipOrder
from baton_wire.messages.values import Role

RoutableCounts = Mapping[tuple[Role, str], int]
"""Routable workers by role and template hash, as the gateways report them."""


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """The recent reports of all gateways of a deployment, merged."""

    routable: RoutableCounts | None
    """Workers that gateways have linked and that fit a partner, by role and template hash; None: unknown now. A worker
    counts once *every* reporting gateway that has had the time to find it has linked it; a template that is left out
    has none. For rollouts and for the counts in the status."""
    slo: SloStatus | None = None
    """Measured against target, rounded; None: not measured."""
    slo_met: bool | None = None
    lane: LaneStatus | None = None
    transport_verified: bool | None = None
    """True if every measured lane reaches `spec.kvTransfer.minBandwidth`; None: nothing was measured."""
    transport_message: str = ""
    flexible: tuple[FlexibleWorker, ...] = ()
    """Workers that can flip, by the newest report of any gateway."""
    linked: frozenset[tuple[Role, str]] | None = None
    """Roles and template hashes with a worker that any gateway has linked, once each had a minute for it; None: unknown
    now."""
    linked_in_s: float | None = None
    """Seconds until `linked` can be known; None: it needs no time."""
    other_version: str | None = None
    """The wire versions, here and there, of a gateway that was refused lately for them; None: none was."""
    pairs: Pairs | None = None
    """The gateways with and without a pair of workers; None: unknown now. For the top line of the status."""


class Telemetry(Protocol):
    """The operator's view of its gateways."""

    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport | None:
        """The report on the deployment with that name and uid, judged by its spec; None: no gateway has reported
        lately."""

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        """Send these flips to gateways, and repeat them until other ones are ordered."""
