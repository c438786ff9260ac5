"""The result of a pass: the last value of its chain, from which the status is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from baton_control.hashes import Revision
from baton_control.rollout import Group, Step
from baton_control.sizing.decision.scaling import Sized
from baton_control.spec.api import LLMDeployment
from baton_operator.passes.observe import WorkerSet
from baton_operator.passes.pool_size import PoolPlan
from baton_operator.passes.problems import PassProblem
from baton_operator.telemetry import GatewayReport
from baton_wire.messages.values import Role


@dataclass(frozen=True, slots=True)
class PassResult:
    """The result of a pass: everything that the status is computed from."""

    deployment: LLMDeployment
    generation: int
    wanted: Mapping[Role, Revision]
    plans: Mapping[Role, PoolPlan]
    sized: Sized | None
    sets: tuple[WorkerSet, ...]
    groups: tuple[Group, ...]
    step: Step
    gateways_ready: int | None
    """Gateway Pods that can answer; None: unknown."""
    report: GatewayReport | None
    problems: tuple[PassProblem, ...]
    notes: tuple[str, ...] = ()
    """Harmless omissions: optional APIs that are not served, unknown fields."""
    leaving_gateways: frozenset[str] = frozenset()
    """Names of gateway Pods that are stopping."""
    is_reachable: bool | None = True
    """True if the clients' Service exists and selects the gateways; None: a NetworkPolicy that lets requests through is
    missing, and it is unknown whether the cluster enforces policies."""
    wakes: bool | None = True
    """True if a request can wake pools that sleep in mode SLO, because gateways report to the operator that it waits.
    None: no gateway has reported lately."""
    refused_env: tuple[str, ...] = ()
    """Variables in used templates that the installation refuses by now, with their fields."""
