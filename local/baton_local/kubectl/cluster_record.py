"""A deployment on a cluster in the form of a run on this machine, so that one page shows both. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from baton_local.fleet.record import ProcessRecord, RunRecord, TargetRecord

Json = Mapping[str, Any]
DEPLOYMENT_LABEL, ROLE_LABEL, TEMPLATE_LABEL = "baton.dev/deployment", "baton.dev/role", "baton.dev/template"
POOLS = ("prefill", "decode")
ROLES = (*POOLS, "gateway")
HTTP_PORT, PAIR_PORT = 8000, 8001
TTFT, TPOT, PERCENTILE = "500ms", "50ms", 95.0
"""The value that the definition sets where a manifest says nothing."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")
_SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def run_record(deployment: Json, pods: Sequence[Json], reasons: Mapping[str, str]) -> RunRecord:
    """Return the record of a deployment with its Pods. `reasons`: why each pool has its size, where gateways know it
    better than the status."""
    metadata, spec, status = (_part(deployment, name) for name in ("metadata", "spec", "status"))
    name, pools = str(metadata["name"]), [pool for pool in POOLS if _is_served(pool, spec)]
    slo = _part(spec, "slo")
    return RunRecord(
        name=name,
        namespace=str(metadata.get("namespace", "")),
        pid=0,
        endpoint=f"service/{name}-gateway",
        served_name=str(_part(spec, "model").get("servedName") or name),
        ready=condition(deployment, "Ready").get("status") == "True",
        decision=str(status.get("message") or ""),
        ttft=_target(_part(slo, "ttft"), TTFT),
        tpot=_target(_part(slo, "tpot"), TPOT),
        processes=tuple(map(process_record, sorted(pods, key=_order))),
        reasons={pool: text for pool in pools if (text := reasons.get(pool) or last_reason(deployment, pool))},
        limits={pool: _limits(_part(spec, pool)) for pool in pools},
        mode=str(_part(spec, "autoscaling").get("mode") or "SLO"),
        wanted={pool: int(count) for pool in pools if (count := _part(status, pool).get("desired")) is not None},
    )


def process_record(pod: Json) -> ProcessRecord:
    """Return the record of a Pod. Its phase is `ready`, or the reason why it is not."""
    metadata, status = _part(pod, "metadata"), _part(pod, "status")
    labels, address = _part(metadata, "labels"), status.get("podIP")
    containers = status.get("containerStatuses") or []
    return ProcessRecord(
        name=str(metadata["name"]),
        role=str(labels.get(ROLE_LABEL, "")),
        phase=_phase(pod),
        revision=str(labels.get(TEMPLATE_LABEL, "")),
        starts=1 + sum(int(container.get("restartCount") or 0) for container in containers),
        pid=None,
        host=None if not address else str(address),
        port=HTTP_PORT,
        pair_port=PAIR_PORT if labels.get(ROLE_LABEL) == "decode" else None,
    )


def _phase(pod: Json) -> str:
    if "deletionTimestamp" in _part(pod, "metadata"):
        return "stopping"
    if condition(pod, "Ready").get("status") == "True":
        return "ready"
    status = _part(pod, "status")
    for container in status.get("containerStatuses") or []:
        waiting = _part(_part(container, "state"), "waiting").get("reason")
        if waiting:
            return str(waiting)
    unscheduled = condition(pod, "PodScheduled")
    if unscheduled.get("status") == "False":
        return str(unscheduled.get("reason") or "Unschedulable")
    return "not ready" if status.get("phase") == "Running" else str(status.get("phase") or "unknown")


def condition(item: Json, kind: str) -> Json:
    """Return a condition; an empty one where there is none."""
    conditions = _part(item, "status").get("conditions") or []
    return next((entry for entry in conditions if entry.get("type") == kind), {})


def last_reason(deployment: Json, pool: str) -> str | None:
    """Return why a pool got its size, from the last decision that is kept."""
    decisions = _part(deployment, "status").get("scalingDecisions") or []
    texts = [
        f"{pool} {entry.get('from')} to {entry.get('to')} at {entry.get('time')}: {entry.get('reason')}"
        for entry in decisions
        if entry.get("pool") == pool
    ]
    return texts[-1] if texts else None


def _is_served(pool: str, spec: Json) -> bool:
    tasks = _part(spec, "model").get("tasks")
    return pool == "prefill" or not tasks or "Generate" in tasks


def _limits(pool: Json) -> tuple[int, int]:
    replicas = _part(pool, "replicas")
    low = int(replicas.get("min", 1))
    return low, int(replicas.get("max", low))


def _target(target: Json, default: str) -> TargetRecord:
    return TargetRecord(seconds(str(target.get("target") or default)), float(target.get("percentile") or PERCENTILE))


def seconds(text: str) -> float:
    """Return the seconds of a duration as manifests have it.

    >>> seconds("1m30s"), seconds("250ms")
    (90.0, 0.25)
    """
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(text))


def _order(pod: Json) -> tuple[int, str]:
    role = _part(_part(pod, "metadata"), "labels").get(ROLE_LABEL)
    return ROLES.index(role) if role in ROLES else len(ROLES), str(_part(pod, "metadata").get("name"))


def _part(item: Json, name: str) -> Json:
    value = item.get(name)
    return value if isinstance(value, dict) else {}
