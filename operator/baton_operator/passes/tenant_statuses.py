"""The status of an LLMTenant: whether gateways let it in, and what it used of its tokens of the month."""

from __future__ import annotations

import contextlib
import datetime

from pydantic import ValidationError

from baton_control.spec.api import API_VERSION
from baton_control.spec.tenant_fields import TENANT_KIND
from baton_operator.kube.kinds import TENANTS
from baton_operator.kube.kube_api import KubeApi, NotFound
from baton_operator.kube.object_fields import Manifest, mapping, mappings, metadata_of, name_of, uid_of
from baton_operator.passes.conditions import Finding, merge_conditions
from baton_operator.passes.tenant_store import TenantStore, namespace_of
from baton_operator.schema.status import Condition, TenantConditionType, TenantMonth, TenantStatus, Truth

STATUS_MANAGER = "baton-status"
SHOWN_SHARE = 0.01
"""A use that moved by less of the limit is not written again."""
LET_IN = Finding(TenantConditionType.READY, Truth.TRUE, "Compiled", "gateways let this tenant in")


def refused(problem: str) -> Finding:
    """The condition of a tenant that is in no table."""
    return Finding(TenantConditionType.READY, Truth.FALSE, "Refused", problem)


def conflicting(problem: str) -> Finding:
    """The condition of a tenant that is in the table, and that some gateway's own keys keep out."""
    return Finding(TenantConditionType.READY, Truth.FALSE, "Conflict", problem)


def without_gateways(namespace: str) -> Finding:
    """The condition of a tenant in whose namespace no gateway lets tenants in."""
    message = f"metadata.namespace: no LLMDeployment of {namespace} lets tenants in with spec.gateway.tenants"
    return Finding(TenantConditionType.READY, Truth.FALSE, "NoGateways", message)


def ready_of(manifest: Manifest) -> Finding | None:
    """The condition that a tenant has now; None: it has none yet."""
    for condition in _conditions(manifest):
        if condition.type == TenantConditionType.READY:
            return Finding(TenantConditionType.READY, Truth(condition.status), condition.reason, condition.message)
    return None


def _conditions(manifest: Manifest) -> list[Condition]:
    """The conditions of a tenant; one that cannot be read is left out."""
    conditions = []
    for one in mappings(mapping(manifest.get("status")).get("conditions")):
        with contextlib.suppress(ValidationError):
            conditions.append(Condition.model_validate(one))
    return conditions


def usage_of(manifest: Manifest) -> TenantMonth | None:
    """The use in a tenant's status; None: it has none that can be read."""
    usage = mapping(manifest.get("status")).get("usage")
    try:
        return TenantMonth.model_validate(usage) if isinstance(usage, dict) else None
    except ValidationError:
        return None


def month_limit(manifest: Manifest) -> int | None:
    """The tokens of the month that a tenant may use; None: any number."""
    limit = mapping(mapping(manifest.get("spec")).get("limits")).get("tokensPerMonth")
    return limit if isinstance(limit, int) else None


def shown_usage(manifest: Manifest, month: str, tokens: float) -> TenantMonth | None:
    """The use to show: the one that is shown already, unless it moved. None: the tenant has no such limit."""
    limit, former = month_limit(manifest), usage_of(manifest)
    if limit is None:
        return None
    if former is not None and former.month == month and abs(tokens - former.tokens) < SHOWN_SHARE * limit:
        return former
    return TenantMonth(month=month, tokens=int(tokens))


def wanted_status(manifest: Manifest, ready: Finding, usage: TenantMonth | None, now: datetime.datetime) -> Manifest:
    """The status of a tenant as the server keeps it."""
    generation = metadata_of(manifest).get("generation")
    observed = generation if isinstance(generation, int) else 0
    conditions = merge_conditions(_conditions(manifest), (ready,), observed, now)
    fields = {"observedGeneration": observed, "conditions": conditions, "usage": usage}
    return TenantStatus.model_validate(fields).model_dump(mode="json", by_alias=True, exclude_none=True)


async def write_status(api: KubeApi, store: TenantStore, manifest: Manifest, body: Manifest) -> bool:
    """Write a status unless the server has it; returns whether it was written. Raises KubeError."""
    if body == mapping(manifest.get("status")):
        return False
    metadata = {"name": name_of(manifest), "namespace": namespace_of(manifest), "uid": uid_of(manifest)}
    wanted: Manifest = {"apiVersion": API_VERSION, "kind": TENANT_KIND, "metadata": metadata, "status": body}
    try:
        written = await api.apply(TENANTS, wanted, manager=STATUS_MANAGER, force=True, subresource="status")
    except NotFound:
        return False
    store.store(written)
    return True
