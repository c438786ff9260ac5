"""Ten thousand forged session ids change nobody's wait: a turn is favoured for what a worker has cached of it."""

from __future__ import annotations

from typing import Final

from baton_gateway.requests.tenant import DEFAULT_TENANT, Tenant
from baton_testing.gateway.virtual_pool import Client, VirtualPool

FORGED: Final = 10_000
SECONDS: Final = 4.0
"""All are sent within this time: most are refused early."""
FORGER: Final = Tenant("forger")


def waits(*, is_forging: bool) -> tuple[list[float], int]:
    """TTFT of honest clients of two tenants, one the forger's own, and requests of the forger that were let in. Each
    of the forger's requests names another session, or none."""
    pool = VirtualPool()
    honest: list[Client] = []
    forged: list[Client] = []

    def ask(number: int) -> None:
        forged.append(pool.ask(FORGER, 400, 2, session=number << 40 if is_forging else None))

    for number in range(FORGED):
        pool.heap.after(number * SECONDS / FORGED, lambda number=number: ask(number))  # type: ignore[misc]
    for turn in range(40):
        tenant, at_s = (DEFAULT_TENANT, FORGER)[turn % 2], (turn + 0.37) * SECONDS / 40
        pool.heap.after(at_s, lambda tenant=tenant: honest.append(pool.ask(tenant, 1_500, 8, session=7)))  # type: ignore[misc]
    pool.run(SECONDS + 30.0)
    pool.close()
    assert len(honest) == 40
    assert len(forged) == FORGED
    return [client.ttft_s for client in honest], sum(client.problem is None for client in forged)


def test_forged_sessions_change_no_wait_and_let_no_more_requests_in() -> None:
    honest, admitted = waits(is_forging=False)
    assert waits(is_forging=True) == (honest, admitted)
    assert 0 < admitted < FORGED
