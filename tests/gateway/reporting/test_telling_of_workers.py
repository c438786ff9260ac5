"""The gateway tells its operator at once when workers come, stop and go."""

from __future__ import annotations

from baton_testing.gateway.gateway_process import RunningGateway, until
from baton_wire.messages.measures import WorkerCondition
from baton_wire.messages.values import Role


async def test_a_worker_that_comes_stops_and_goes_is_told_of_at_once(gateway: RunningGateway) -> None:
    """What a deployment's status says of routable workers is as old as its gateway's last summary."""
    table, told = gateway.server.table, []

    def tell() -> None:
        told.append([worker.condition for worker in table.all()])

    gateway.server.relay.on_workers_changed = tell
    live, draining = WorkerCondition.LIVE, WorkerCondition.DRAINING
    worker = await gateway.pool.add(Role.DECODE)
    await until(lambda: told[-1:] == [[live, live, live]])
    await worker.report(draining=True)
    await until(lambda: told[-1:] == [[live, live, draining]])
    await worker.stop()
    await until(lambda: told[-1:] == [[live, live]])
