"""A flood of the batch class next to other requests: the relay on virtual time with workers that keep time."""

from __future__ import annotations

import pytest

from baton_gateway.requests.admission import AdmissionLimits
from baton_gateway.requests.tenant import Tenant
from baton_testing.gateway.virtual_pool import Client, VirtualPool
from baton_wire.tenant_table import PriorityClass

TEAM, OTHER = Tenant("team"), Tenant("other")
BATCH_OF_TEAM = Tenant("team", priorities=(PriorityClass.BATCH,))


def asked_in_a_flood(tenant: Tenant, num_flood: int) -> tuple[list[Client], list[Client]]:
    """Eight requests of a tenant, one a second, and a flood of batch requests that came before them."""
    pool = VirtualPool(limits=AdmissionLimits(max_wait_s=120.0))
    try:
        clients: list[Client] = []
        flooding = [pool.ask(BATCH_OF_TEAM, 1_000, 20) for _ in range(num_flood)]
        for second in range(1, 9):
            pool.ask_at(float(second), tenant, 200, 10, then=clients.append)
        pool.run(30.0)
        return clients, flooding
    finally:
        pool.close()


@pytest.mark.parametrize("tenant", [TEAM, OTHER])
def test_a_flood_of_batch_makes_no_other_request_late_and_is_served_in_the_slack(tenant: Tenant) -> None:
    clients, flooding = asked_in_a_flood(tenant, 120)
    assert [client.problem for client in (*clients, *flooding)] == [None] * 128, "also no batch request is refused"
    assert max(client.ttft_s for client in clients) < 0.5, "the target; alone it is 0.02 s"
