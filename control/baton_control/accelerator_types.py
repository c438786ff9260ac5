"""Which type of accelerator each pool computes on: a manifest may name several, and one of them is in force. Pure.

A deployment in which a type is in force is an ordinary one: its pool has that accelerator, on that type's nodes, and
the others as alternatives. So whatever is made from it, templates among it, knows nothing of a choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from baton_control.spec.api import LLMDeployment
from baton_control.spec.pools import AcceleratorSpec, AlternativeSpec, PoolSpec
from baton_control.worker_specs import pool_spec
from baton_wire.messages.values import POOL_ROLES, Role


def types_of(pool: PoolSpec) -> tuple[AlternativeSpec, ...]:
    """All that the pool may compute on, the one in force first; empty where there is no choice."""
    accelerator = pool.accelerator
    if accelerator is None or not accelerator.alternatives:
        return ()
    assert accelerator.type is not None, "the schema asks for it beside alternatives"
    assert accelerator.cost_per_hour is not None, "the schema asks for it beside alternatives"
    own = AlternativeSpec.model_construct(
        resource=accelerator.resource,
        type=accelerator.type,
        cost_per_hour=accelerator.cost_per_hour,
        node_selector=accelerator.node_selector,
    )
    return (own, *accelerator.alternatives)


def in_force(deployment: LLMDeployment, chosen: Mapping[Role, str]) -> LLMDeployment:
    """The deployment with these types in force, and their nodes selected. A type that a pool does not name, or a pool
    without one: the first that the manifest names."""
    pools = {role.value: _with(pool_spec(deployment, role), chosen.get(role)) for role in POOL_ROLES}
    return deployment.model_copy(update={"spec": deployment.spec.model_copy(update=pools)})


def type_of(pool: PoolSpec, resource: str, node_selector: Mapping[str, Any]) -> str | None:
    """The type that a Pod with this resource and these labels of nodes was made for; None: of none that is named."""
    fitting = [
        each
        for each in types_of(pool)
        if each.resource == resource and each.node_selector.items() <= node_selector.items()
    ]
    return max(fitting, key=lambda each: len(each.node_selector)).type.value if fitting else None


def _with(pool: PoolSpec, chosen: str | None) -> PoolSpec:
    accelerator = pool.accelerator
    if accelerator is None:
        return pool
    types = types_of(pool)
    wanted = next((each for each in types if each.type == chosen), None)
    if wanted is not None and wanted is not types[0]:
        accelerator = AcceleratorSpec.model_construct(
            resource=wanted.resource,
            type=wanted.type,
            cost_per_hour=wanted.cost_per_hour,
            node_selector=wanted.node_selector,
            alternatives=tuple(each for each in types if each is not wanted),
        )
    selector = {**pool.placement.node_selector, **accelerator.node_selector}
    placement = pool.placement.model_copy(update={"node_selector": selector})
    return pool.model_copy(update={"accelerator": accelerator, "placement": placement})
