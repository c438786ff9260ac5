"""The facts about a cluster that the doctor judges. A fact that could not be read is None."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeaseFacts:
    """The Lease of an operator."""

    name: str
    holder: str
    age_s: float | None
    """Seconds since it was renewed, by the server's clock; None: unknown."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class DeploymentFacts:
    """One LLMDeployment, as its status says."""

    name: str
    is_ready: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The facts about the cluster of a kubeconfig's context."""

    context: str
    namespace: str
    operator_namespace: str
    problem: str | None = None
    """Why the cluster cannot be asked at all; None: it answers."""
    version: tuple[int, int] | None = None
    fields: dict[str, frozenset[str] | None] | None = None
    """The fields of each definition of Baton, as paths; None: the definition is missing."""
    leases: tuple[LeaseFacts, ...] | None = None
    ready_operators: int | None = None
    """Ready Pods of the operator."""
    rights: dict[str, bool] | None = None
    """Things that the user may do in the namespace, such as `create llmdeployments`."""
    accelerators: int | None = None
    """GPUs that nodes offer as nvidia.com/gpu."""
    default_classes: tuple[str, ...] | None = None
    """StorageClasses that claims without a class get."""
    deployments: tuple[DeploymentFacts, ...] | None = None
