"""The gateway reports to its operator at once when workers appear, drain and leave."""

from __future__ import annotations

from baton_testing.gateway.gateway_process import RunningGateway, until
from baton_wire.messages.measures import WorkerCondition
from baton_wire.messages.values import Role


async def test_a_worker_that_appears_drains_and_leaves_is_reported_at_once(gateway: RunningGateway) -> None:
    """Routable workers in a deployment's status are as old as its gateway's last summary."""
    table, reports = gateway.server.table, []

    def report() -> None:
        reports.append([worker.condition for worker in table.all()])

    gateway.server.relay.on_workers_changed = report
    live, draining = WorkerCondition.LIVE, WorkerCondition.DRAINING
    worker = await gateway.pool.add(Role.DECODE)
    await until(lambda: reports[-1:] == [[live, live, live]])
    await worker.report(draining=True)
    await until(lambda: reports[-1:] == [[live, live, draining]])
    await worker.stop()
    await until(lambda: reports[-1:] == [[live, live]])
