"""What gateways tell the operator about a deployment, as a reconcile pass reads it. Values only; the link fills them.

Nothing here waits: an answer is what was last heard, or None when nothing is known now.
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
    """What all gateways of a deployment told lately, merged."""

    routable: RoutableCounts | None
    """Workers that gateways have linked and that fit a partner, by role and template hash; None: not known now. A
    worker counts when *every* reporting gateway has it that has had the time to find it; templates that are left out
    have none. For rollouts and counts."""
    slo: SloStatus | None = None
    """Measured against target, rounded; None: not measured."""
    slo_met: bool | None = None
    lane: LaneStatus | None = None
    transport_verified: bool | None = None
    """Whether every measured lane reaches `spec.kvTransfer.minBandwidth`; None: nothing measured."""
    transport_message: str = ""
    flexible: tuple[FlexibleWorker, ...] = ()
    """Workers that can flip, as any gateway has heard of them last."""
    pairs: Pairs | None = None
    """Whether requests are answered at every gateway; None: not known now. For the top line of the status."""


class Telemetry(Protocol):
    def report(self, key: Key, uid: str, deployment: LLMDeployment) -> GatewayReport | None:
        """What is known of the deployment with that name and uid, judged by this spec; None: no gateway has told
        anything lately."""

    def order(self, key: Key, flips: tuple[FlipOrder, ...]) -> None:
        """What gateways are to have workers do, again and again until it is something else."""
