"""The start of a deployment as a client hears of it: why there are no workers yet."""

from __future__ import annotations

from baton_gateway.errors import Problem, no_workers, workers_starting
from baton_gateway.workers.linked_workers import WorkerTable
from baton_wire.messages.measures import WorkerCondition
from baton_wire.messages.values import Role


def explain_missing(table: WorkerTable, problem: Problem | None = None) -> Problem:
    """The refusal of a request for want of workers; another one for as long as the workers start. `problem`: the
    refusal so far; any other one than for want of workers stays."""
    refusal = no_workers() if problem is None else problem
    if refusal.code != no_workers().code or table.has_served:
        return refusal
    return workers_starting(table.num_usable(), table.wanted, refusal.retry_after_s or 1)


def missing_pool(table: WorkerTable) -> str:
    """Name the pools of which no worker is live, for records; empty: each has one."""
    live = {worker.role for worker in table.all() if worker.condition is WorkerCondition.LIVE}
    return ", ".join(f"no {role.value} worker is live" for role in (Role.PREFILL, Role.DECODE) if role not in live)
