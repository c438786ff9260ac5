"""The accelerator type of each pool: a manifest may name several, and one of them is in force. Pure.

A deployment with a type in force is an ordinary one: its pool has that accelerator, on that type's nodes, and the other
types as alternatives. So templates, and everything else made from it, know of no choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_control.spec.api import LLMDeployment
from baton_control.spec.pools import AcceleratorSpec, AlternativeSpec, PoolSpec
from baton_control.worker_specs import pool_spec
from baton_wire.messages.values import POOL_ROLES, Role


def types_of(pool: PoolSpec) -> tuple[AlternativeSpec, ...]:
    """All accelerator types of the pool, the one in force first; empty: there is no choice."""
    accelerator = pool.accelerator
    if accelerator is None or not accelerator.alternatives:
        return ()
    assert accelerator.type is not None, "the schema requires it with alternatives"
    assert accelerator.resource is not None, "the schema requires it with alternatives"
    assert accelerator.cost_per_hour is not None, "the schema requires it with alternatives"
    own = AlternativeSpec.model_construct(
        resource=accelerator.resource,
        type=accelerator.type,
        cost_per_hour=accelerator.cost_per_hour,
        node_selector=accelerator.node_selector,
    )
    return (own, *accelerator.alternatives)


def in_force(deployment: LLMDeployment, chosen: Mapping[Role, str]) -> LLMDeployment:
    """The deployment with these types in force, and their nodes selected. A pool without a chosen type, or with one
    that it does not name, gets the first that the manifest names."""
    pools = {role.value: _with(pool_spec(deployment, role), chosen.get(role)) for role in POOL_ROLES}
    return deployment.model_copy(update={"spec": deployment.spec.model_copy(update=pools)})


def type_of(pool: PoolSpec, resource: str, node_selector: Mapping[str, Any]) -> str | None:
    """The type that a Pod with this resource and node selector was made for; None: the pool names no such type."""
    fitting = [
        candidate
        for candidate in types_of(pool)
        if candidate.resource == resource and candidate.node_selector.items() <= node_selector.items()
    ]
    return max(fitting, key=lambda candidate: len(candidate.node_selector)).type.value if fitting else None


def _with(pool: PoolSpec, chosen: str | None) -> PoolSpec:
    accelerator = pool.accelerator
    if accelerator is None:
        return pool
    types = types_of(pool)
    wanted = next((candidate for candidate in types if candidate.type == chosen), None)
    if wanted is not None and wanted is not types[0]:
        accelerator = AcceleratorSpec.model_construct(
            resource=wanted.resource,
            with_=accelerator.with_,
            type=wanted.type,
            cost_per_hour=wanted.cost_per_hour,
            node_selector=wanted.node_selector,
            alternatives=tuple(other for other in types if other is not wanted),
        )
    selector = {**pool.placement.node_selector, **accelerator.node_selector}
    placement = pool.placement.model_copy(update={"node_selector": selector})
    return pool.model_copy(update={"accelerator": accelerator, "placement": placement})
