"""The deployments of a namespace, each with its pools, their targets and why they have their sizes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton_local.fleet.record import RunRecord
from baton_local.kubectl.cluster_record import condition, run_record
from baton_local.text_table import table

Json = Mapping[str, Any]


def as_json(deployments: Sequence[Json]) -> dict[str, object]:
    """The deployments as plain data; what the status does not have is null."""
    return {"deployments": [_deployment(item) for item in deployments]}


def as_text(deployments: Sequence[Json], namespace: str) -> str:
    """The deployments for people, the reasons below the table."""
    if not deployments:
        return f"no LLMDeployment in the namespace {namespace}"
    records = [run_record(item, (), {}) for item in deployments]
    rows: list[tuple[object, ...]] = []
    reasons = []
    for item, record in zip(deployments, records, strict=True):
        status = item.get("status") or {}
        slo = status.get("slo") or {}
        for pool in record.roles:
            low, high = record.limits[pool]
            ready = (status.get(pool) or {}).get("ready")
            measured = slo.get("ttft" if pool == "prefill" else "tpot")
            rows.append(
                (record.name, status.get("summary"), pool, ready, record.wanted.get(pool), f"{low} to {high}", measured)
            )
        reasons += [f"{record.name}: {text}" for text in _texts(item, record)]
    header = ("NAME", "STATUS", "POOL", "READY", "WANTED", "LIMITS", "MEASURED/TARGET")
    return "\n".join([table(header, rows), *(["", *reasons] if reasons else [])])


def _texts(item: Json, record: RunRecord) -> list[str]:
    """Why a deployment is as it is: its state, what limits its size, and the last decision of each pool."""
    limited = condition(item, "ScalingLimited")
    texts = [record.decision] if record.decision and not record.ready else []
    texts += [f"limited: {limited.get('message')}"] if limited.get("status") == "True" else []
    return [*texts, *record.reasons.values()]


def _deployment(item: Json) -> dict[str, object]:
    record, status = run_record(item, (), {}), item.get("status") or {}
    limited = condition(item, "ScalingLimited")
    slo = status.get("slo") or {}
    return {
        "name": record.name,
        "namespace": record.namespace,
        "ready": record.ready,
        "status": status.get("summary"),
        "message": status.get("message"),
        "limited": limited.get("message") if limited.get("status") == "True" else None,
        "slo": {"ttft": slo.get("ttft"), "tpot": slo.get("tpot")},
        "pools": {
            pool: {
                "ready": (status.get(pool) or {}).get("ready"),
                "wanted": record.wanted.get(pool),
                "min": record.limits[pool][0],
                "max": record.limits[pool][1],
                "reason": record.reasons.get(pool),
            }
            for pool in record.roles
        },
    }
