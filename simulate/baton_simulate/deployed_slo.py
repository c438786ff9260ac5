"""Mode SLO of an LLMDeployment in a replay: the object that the operator and `baton up` size with, fed with summaries
of the simulator, and the type of accelerator of each pool where the file names several.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from baton_control.accelerator_types import in_force, types_of
from baton_control.names import Key
from baton_control.sizing.decision.scaling import PoolNow, SizingRequest
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.sizing.slo_sizing import SloSizing
from baton_control.spec.api import LLMDeployment
from baton_control.telemetry.store import TelemetryStore
from baton_control.worker_specs import pool_spec
from baton_simulate.baselines.signals import Sizes
from baton_simulate.simulator_metrics import SimulatorMetrics
from baton_wire.messages.operator_link import GatewayHello
from baton_wire.messages.values import POOL_ROLES, Role

KEY = Key("simulated", "deployment")
EPOCH = bytes(16)
PASS_S = 1.0
"""Seconds between two passes while workers of two types run: the operator makes one whenever a worker becomes ready."""
UNTYPED = "accelerator"
"""The type of a pool that names none."""


@dataclass(frozen=True, slots=True)
class TypeOfPool:
    """A type of accelerator that a pool may compute on."""

    name: str
    price: float | None
    """Per accelerator and hour; None: the file has none."""
    model: WorkerModel
    """A worker on this type."""


class DeployedSlo:
    """The decision of a deployment in a replay."""

    def __init__(
        self, deployment: LLMDeployment, spec: SizingSpec, prior: Callable[[LLMDeployment], WorkerModel]
    ) -> None:
        """`prior`: a worker's step times before any was observed."""
        self._written = _with_one_gateway_process(deployment)
        self._spec = spec
        self._now = self._reported_s = 0.0
        self._store = TelemetryStore()
        self._store.linked(EPOCH, GatewayHello("simulator", 1), 0.0)
        self._sizing = SloSizing(
            lambda key: self._store, lambda: self._now, lambda made, config: prior(made), adjust=lambda made: spec
        )
        self.types = {role: first_type(deployment, role) for role in POOL_ROLES}
        """The type that each pool should compute on."""
        self.choices: dict[Role, str] = {}
        """Why, for pools that chose a type."""
        self.reasons: dict[Role, str] = {}
        self.flips: None = None
        self._wanted: Sizes = {}
        self._in_force = in_force(self._written, self.types)
        self._is_mixed = False

    @property
    def interval_s(self) -> float:
        return PASS_S if self._is_mixed else self._spec.interval_s

    def decide_from(self, metrics: SimulatorMetrics | None, now: float) -> Sizes | None:
        """`metrics`: None while they are lost."""
        self._now = now
        if metrics is None:
            return None
        if now - self._reported_s >= self._spec.interval_s or now == 0.0:
            self._store.add_summary(EPOCH, metrics.summary(), now)
            self._reported_s = now
        kinds = {role: metrics.kinds(role) for role in POOL_ROLES}
        if not self._wanted:
            self._wanted = {role: sum(workers for workers, _ in kinds[role].values()) for role in POOL_ROLES}
        pools = {role: _pool_now(self._wanted[role], kinds[role], self.types[role]) for role in POOL_ROLES}
        self._is_mixed = any(pool.others for pool in pools.values())
        sized = self._sizing.decide(SizingRequest(KEY, self._in_force, pools, None, now, gateways=1))
        self.reasons = dict(sized.reasons)
        chosen = {role: choice.type for role, choice in sized.types.items()}
        if any(self.types[role] != name for role, name in chosen.items()):
            self.types = self.types | chosen
            self._in_force = in_force(self._written, self.types)
            self._is_mixed = True
        self.choices = {role: choice.why for role, choice in sized.types.items()}
        self._wanted = dict(sized.workers)
        return self._wanted


def first_type(deployment: LLMDeployment, role: Role) -> str:
    """The type that the file names first for a pool."""
    accelerator = pool_spec(deployment, role).accelerator
    if accelerator is None:
        return "CPU"
    return UNTYPED if accelerator.type is None else accelerator.type.value


def pool_types(
    deployment: LLMDeployment, role: Role, prior: Callable[[LLMDeployment], WorkerModel]
) -> tuple[TypeOfPool, ...]:
    """All types that a pool may compute on, the one that its file names first in front."""
    pool = pool_spec(deployment, role)
    kinds = types_of(pool)
    if not kinds:
        price = pool.accelerator.cost_per_hour if pool.accelerator is not None else None
        return (TypeOfPool(first_type(deployment, role), price, prior(deployment)),)
    return tuple(
        TypeOfPool(kind.type.value, kind.cost_per_hour, prior(in_force(deployment, {role: kind.type})))
        for kind in kinds
    )


def _pool_now(wanted: int, kinds: Mapping[str, tuple[int, int]], own: str) -> PoolNow:
    """The pool as sizing sees it. `wanted`: by the decision before; more run while one type replaces another."""
    others = {name: workers for name, (workers, _) in kinds.items() if name != own}
    return PoolNow(
        workers=wanted,
        routable=sum(routable for _, routable in kinds.values()),
        others=others,
        others_routable=sum(kinds[name][1] for name in others),
    )


def _with_one_gateway_process(deployment: LLMDeployment) -> LLMDeployment:
    """The deployment with one gateway process, as the simulator has."""
    gateway = deployment.spec.gateway.model_copy(update={"processes": 1})
    return deployment.model_copy(update={"spec": deployment.spec.model_copy(update={"gateway": gateway})})
