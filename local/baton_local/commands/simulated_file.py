"""The LLMDeployment of `baton simulate -f FILE`: targets, pools, prices, and all types of accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_control.errors import UnsupportedError
from baton_control.rollout import Limits
from baton_control.sizing.inputs.deployment import sizing_spec, worker_of_shape
from baton_control.sizing.inputs.model_shape import ModelShape
from baton_control.sizing.inputs.sizing_spec import SizingSpec
from baton_control.sizing.inputs.worker_model import WorkerModel
from baton_control.spec.api import LLMDeployment
from baton_control.spec.manifest import read_manifest
from baton_local.errors import StartError
from baton_local.fleet.host import model_directory
from baton_local.hardware_arguments import MODEL, shape_named
from baton_simulate.deployed_slo import DeployedSlo, TypeOfPool, pool_types
from baton_simulate.replay import ReplayOutcome
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class SimulatedFile:
    """A deployment as its file says, and the model that it serves."""

    deployment: LLMDeployment
    shape: ModelShape

    @property
    def spec(self) -> SizingSpec:
        return sizing_spec(self.deployment)

    @property
    def limits(self) -> Limits:
        rollout = self.deployment.spec.rollout
        return Limits(rollout.max_surge, rollout.max_unavailable)

    def prior(self, deployment: LLMDeployment) -> WorkerModel:
        """A worker of this model, as the deployment has it."""
        return worker_of_shape(deployment, self.shape)

    def types(self, role: Role) -> tuple[TypeOfPool, ...]:
        """All types that a pool may compute on, the one that the file names first in front."""
        return pool_types(self.deployment, role, self.prior)

    def models(self) -> Mapping[tuple[Role, str], WorkerModel]:
        return {(role, kind.name): kind.model for role in POOL_ROLES for kind in self.types(role)}

    def policy(self) -> DeployedSlo:
        """A fresh policy: it remembers its replay."""
        return DeployedSlo(self.deployment, self.spec, self.prior)

    def costs(self, outcome: ReplayOutcome) -> dict[tuple[Role, str], float | None]:
        """The cost of each pool on each type; None where the file has no price. A policy that chooses no type has the
        one that the file names first."""
        prices = {role: {kind.name: kind.price for kind in self.types(role)} for role in POOL_ROLES}
        costs: dict[tuple[Role, str], float | None] = {}
        for (role, name), hours in outcome.hours.items():
            price = prices[role].get(name, next(iter(prices[role].values())))
            costs[role, name] = None if price is None else hours * price
        return costs


def read_simulated(path: Path, model: str | None) -> SimulatedFile:
    """Read a deployment. `model`: a known model or a folder, where the file's own is not on this machine. Raises
    StartError and ManifestError."""
    deployment = read_manifest(path)
    if model is not None:
        return SimulatedFile(deployment, shape_named(model))
    try:
        folder = model_directory(deployment, path, {})
    except UnsupportedError as error:
        raise StartError(f"{MODEL}: say which model, or a folder with its config.json: {error}") from error
    return SimulatedFile(deployment, shape_named(str(folder)))
