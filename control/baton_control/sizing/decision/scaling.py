"""How many workers each pool shall have: the seam to sizing, and the rule that stands in until load is weighed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from baton_control.names import Key
from baton_control.sizing.decision.budget import within_bounds
from baton_control.spec.api import LLMDeployment
from baton_wire.messages.values import POOL_ROLES, Role


@dataclass(frozen=True, slots=True)
class PoolNow:
    """A pool when it is sized."""

    workers: int
    """Wanted of all revisions together: started and not told to stop."""
    routable: int | None
    """None: unknown."""
    placement_s: float | None = None
    """What workers lately waited for before their processes started: nodes, images; None: unknown, or they do not."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Of them, those on another type of accelerator than the one in force, by type."""
    others_routable: int = 0
    """Of `routable`, those of `others`."""


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
    """What was weighed, for `status.lastScaling.inputs`."""
    memory: str | None = None
    """At most 4096 bytes, handed in again by the next call; safe to lose."""
    types: Mapping[Role, TypeChoice] = field(default_factory=dict)
    """The type of accelerator to have, of pools that may choose."""


class Sizing(Protocol):
    def decide(
        self,
        key: Key,
        deployment: LLMDeployment,
        pools: Mapping[Role, PoolNow],
        memory: str | None,
        epoch_s: float,
        gateways: int | None = None,
    ) -> Sized:
        """One decision in mode SLO. Quick (a pass waits for it) and repeatable: asked again with nothing new, it
        answers the same. `gateways`: Pods whose reports make a whole; None: the fewest that
        `spec.gateway` allows."""


class HoldSizing:
    """Keeps what runs, inside the bounds: a pool is never sized from what is not known."""

    def decide(
        self,
        key: Key,
        deployment: LLMDeployment,
        pools: Mapping[Role, PoolNow],
        memory: str | None,
        epoch_s: float,
        gateways: int | None = None,
    ) -> Sized:
        workers = {role: within_bounds(deployment, role, pools[role].workers) for role in POOL_ROLES}
        reasons = {role: f"hold at {workers[role]}: load is not weighed yet" for role in POOL_ROLES}
        return Sized(workers, reasons, holds=True)
