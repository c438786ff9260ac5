"""Retries are bounded for each tenant, and no tenant spends another's."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from baton_gateway.requests.retry_budget import MAX_TENANTS, RetryBudget, RetryBudgets
from baton_testing.gateway.fake_pool import FakePool
from baton_testing.gateway.gateway_process import running_gateway
from baton_testing.gateway.three_tenants import BAD, GOOD, key_file
from baton_wire.messages.values import Reason, Role

COMPLETIONS = "/v1/completions"
LONGEST_LINE = 2_000


def spent(budget: RetryBudget, now: float) -> int:
    """How many retries it had."""
    count = 0
    while budget.withdraw(now):
        count += 1
    return count


def test_a_tenant_that_has_spent_its_retries_leaves_others_theirs() -> None:
    budgets = RetryBudgets()
    first = spent(budgets.of("bad"), 0.0)
    assert first > 0
    assert spent(budgets.of("bad"), 0.0) == 0
    assert spent(budgets.of("good"), 0.0) == first


def test_budgets_are_kept_for_a_bounded_number_of_tenants_those_that_ask_first() -> None:
    budgets = RetryBudgets()
    spent(budgets.of("bad"), 0.0)
    for number in range(2 * MAX_TENANTS):
        budgets.of(f"tenant-{number}")
        budgets.of("bad")
    assert len(budgets) == MAX_TENANTS
    assert spent(budgets.of("bad"), 0.0) == 0


async def test_a_worker_that_fails_one_tenants_many_runs_costs_another_tenant_no_answer(
    pool: FakePool, tmp_path: Path, http: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    broken = await pool.add(Role.DECODE)
    broken.fail_next = [Reason.INTERNAL] * 100_000
    async with running_gateway(pool, f"--api-keys={key_file(tmp_path)}") as gateway:
        statuses = []
        for key, prompts in ((BAD, 64), (BAD, 64), *((GOOD, 1),) * 20):
            body = {"model": "tiny", "prompt": ["a"] * prompts, "max_tokens": 2}
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(gateway.url(COMPLETIONS), json=body, headers=headers) as got:
                statuses.append((key, got.status))
    assert (BAD, 502) in statuses
    assert {status for key, status in statuses if key == GOOD} == {200}
    assert max(len(record.getMessage()) for record in caplog.records) < LONGEST_LINE  # a few of 64 runs are logged
