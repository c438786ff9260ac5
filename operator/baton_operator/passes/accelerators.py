"""The type of accelerator of a pool whose manifest names several: from the status, else from the newest record. Pure.

A pass writes sizing's choice into the status, and the next pass carries it out, so that the choice is stored before
anything is made from it. If the status is lost, as with a restored backup, the type in the newest record stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from baton_control.accelerator_types import type_of, types_of
from baton_control.hashes import Revision
from baton_control.rollout import Group
from baton_control.spec.api import LLMDeployment
from baton_control.spec.pools import PoolSpec
from baton_control.worker_specs import pool_spec
from baton_operator.kube.object_fields import Manifest, mapping, mappings
from baton_operator.passes.template_records import Stored, newest_record
from baton_operator.schema.status import DeploymentStatus
from baton_wire.messages.values import POOL_ROLES, Role


def status_types(before: DeploymentStatus) -> dict[Role, str]:
    """The types in the status, by role."""
    pools = {Role.PREFILL: before.prefill, Role.DECODE: before.decode}
    return {role: pool.accelerator for role, pool in pools.items() if pool is not None and pool.accelerator is not None}


def recorded_types(deployment: LLMDeployment, records: Iterable[Stored]) -> dict[Role, str]:
    """The types of the newest templates, as far as they are known, by role."""
    before = newest_record(records)
    if before is None:
        return {}
    names = {
        role: _of_template(pool_spec(deployment, role), before.record.rendered[role].pod)
        for role in POOL_ROLES
        if types_of(pool_spec(deployment, role))
    }
    return {role: name for role, name in names.items() if name is not None}


def count_other_types(
    deployment: LLMDeployment, role: Role, groups: Iterable[Group], pods: Mapping[tuple[Role, Revision], Manifest]
) -> tuple[dict[str, int], int]:
    """Workers on a type other than the one in force, by type, and the number of routable ones."""
    pool = pool_spec(deployment, role)
    types = types_of(pool)
    counts: dict[str, int] = {}
    routable = 0
    for group in groups if types else ():
        pod = pods.get((role, group.revision)) if group.role is role else None
        name = None if pod is None else _of_template(pool, pod)
        if name is not None and name != types[0].type and group.workers:
            counts[name] = counts.get(name, 0) + group.workers
            routable += group.routable or 0
    return counts, routable


def _of_template(pool: PoolSpec, pod: Manifest) -> str | None:
    spec = mapping(pod.get("spec"))
    selector = mapping(spec.get("nodeSelector"))
    for container in mappings(spec.get("containers"))[:1]:
        for resource in mapping(mapping(container.get("resources")).get("limits")):
            name = type_of(pool, resource, selector)
            if name is not None:
                return name
    return None
