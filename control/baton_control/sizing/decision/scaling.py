"""How many workers each pool shall have: the interface to sizing, and the rule that stands in for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from baton_control.names import Key
from baton_control.sizing.inputs.deployment import pool_bounds
from baton_control.spec.api import LLMDeployment
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool when it is sized."""

    workers: int
    """Workers wanted of all revisions together: started and not asked to stop."""
    routable: int | None
    """None: unknown."""
    placement_s: float | None = None
    """How long workers lately waited for nodes and images before their processes started; None: unknown, or they do
    not wait."""
    others: Mapping[str, int] = field(default_factory=dict)
    """The workers on another type of accelerator than the one in force, by type."""
    others_routable: int = 0
    """How many of `others` are routable."""


@dataclass(frozen=True, slots=True)
class SizingRequest:
    """The question to sizing: one deployment as it is now."""

    key: Key
    deployment: LLMDeployment
    pools: Mapping[Role, PoolNow]
    memory: str | None
    """`Sized.memory` of a former decision, perhaps of another process; None: there is none."""
    epoch_s: float
    gateways: int | None = None
    """Gateway Pods whose reports make a whole; None: the fewest that `spec.gateway` allows."""


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """The type of accelerator that a pool should have."""

    type: str
    why: str
    """In words, with workers and money."""


@dataclass(frozen=True, slots=True)
class Sized:
    """An answer of sizing."""

    workers: Mapping[Role, int]
    reasons: Mapping[Role, str]
    """Per pool, in words that a person on call can use."""
    holds: bool
    """No demand was weighed: the numbers are not an answer to the load."""
    inputs: str | None = None
    """The figures that were weighed, for `status.lastScaling.inputs`."""
    memory: str | None = None
    """At most 4096 bytes, passed to the next decision; safe to lose."""
    types: Mapping[Role, TypeChoice] = field(default_factory=dict)
    """The type of accelerator to have, of pools that may choose."""


class Sizing(Protocol):
    """Sizes deployments in mode SLO."""

    def decide(self, request: SizingRequest) -> Sized:
        """One decision. Quick, because a pass waits for it, and repeatable: asked again with nothing new, it gives the
        same answer."""


class HoldSizing:
    """Keeps what runs, inside the bounds: a pool is never sized from what is not known."""

    def decide(self, request: SizingRequest) -> Sized:
        workers = {
            role: pool_bounds(request.deployment, role).clamp(request.pools[role].workers) for role in POOL_ROLES
        }
        reasons = {role: f"hold at {workers[role]}: load is not weighed yet" for role in POOL_ROLES}
        return Sized(workers, reasons, holds=True)
