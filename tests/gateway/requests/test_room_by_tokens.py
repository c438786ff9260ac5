"""Held prompts go once this process sees room at a worker: they do not wait for the worker's next report."""

from __future__ import annotations

import pytest

from baton_gateway.requests.tenant import Tenant
from baton_testing.gateway.virtual_pool import Client, VirtualPool

MANY, FEW = Tenant("many"), Tenant("few")


def test_an_idle_prefill_worker_leaves_no_prompt_held_for_a_report() -> None:
    pool = VirtualPool()
    try:
        pool.run(1.0)
        pool.token_s = 1e-5  # ten times as fast as its steps until now, so no clock says that it is idle
        clients: list[Client] = []
        pool.ask_at(1.012, MANY, 2_000, 2, then=clients.append)
        pool.ask_at(1.020, FEW, 100, 2, then=clients.append)
        pool.run(2.0)
        first, held = clients
        assert first.first_s == pytest.approx(1.034, abs=1e-3)
        assert held.first_s is not None
        assert first.first_s is not None
        assert held.first_s - first.first_s < 0.005, "the next reports come at 1.04 and 1.1 s"
    finally:
        pool.close()


def test_a_slot_that_was_freed_is_taken_before_the_next_report() -> None:
    """All slots of the decode worker are taken by sequences of 0.1 s, and as many more requests wait."""
    pool = VirtualPool(slots=32, token_s=1e-5)
    try:
        ended = 0

        def count(client: Client) -> None:
            nonlocal ended
            ended += client.problem is None

        def flood() -> None:
            if pool.now < 3.0:
                if len(pool.open) < 150:
                    pool.ask(MANY, 100, 6, on_end=count)
                pool.heap.after(0.001, flood)

        few: list[Client] = []
        flood()
        for number in range(20):
            pool.ask_at(1.3 + number / 16, FEW, 100, 8, then=few.append)
        pool.run(4.0)
        assert sorted(client.ttft_s for client in few)[10] < 0.01, "where each waits for a report the median is 0.03 s"
        assert ended > 900, "825 where freed slots stay empty until a report"
    finally:
        pool.close()


def test_runs_that_arrive_all_the_time_put_no_check_off() -> None:
    """Each held run planned the next check anew, so that a flood of them left all to the reports."""
    pool = VirtualPool()
    try:
        pool.run(1.001)
        assert pool.prefill.linked is not None
        pool.ask(MANY, 2_000, 2)
        for number in range(100):  # one each millisecond
            pool.ask_at(1.002 + number / 1_000, MANY, 100, 2)
        checks: list[float] = []
        release_ready = pool.relay.held.release_ready

        def check() -> None:
            checks.append(pool.now)
            release_ready()

        pool.relay.held.release_ready = check  # type: ignore[method-assign]
        pool.run(1.099)
        assert checks, "the first report comes at 1.1 s"
    finally:
        pool.close()
