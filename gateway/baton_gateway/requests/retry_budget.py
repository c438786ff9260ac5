"""A budget of retries for each tenant, so that retries never become a storm, and one tenant's failing requests cost no
other tenant a retry.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

MAX_TENANTS: Final = 1_024
"""The budgets kept: those of the tenants that asked last."""


@dataclass(slots=True)
class RetryBudget:
    """A bucket that every request fills by `ratio` and every retry empties by one.

    `floor_per_s` flows in regardless of traffic, so that a quiet gateway can still retry. Retries because a worker went
    away are not taken from it: their number is bounded by the number of requests that the worker had.
    """

    ratio: float = 0.2
    floor_per_s: float = 1.0
    capacity: float = 100.0
    balance: float = 10.0
    filled_s: float | None = None

    def request(self) -> None:
        """A request came in."""
        self.balance = min(self.capacity, self.balance + self.ratio)

    def withdraw(self, now: float) -> bool:
        """Take one retry from the budget; False: it is used up."""
        if self.filled_s is not None:
            self.balance = min(self.capacity, self.balance + max(0.0, now - self.filled_s) * self.floor_per_s)
        self.filled_s = now
        if self.balance < 1.0:
            return False
        self.balance -= 1.0
        return True


class RetryBudgets:
    """The retry budgets of tenants, by name."""

    def __init__(self) -> None:
        self._by_tenant: OrderedDict[str, RetryBudget] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_tenant)

    def of(self, tenant: str) -> RetryBudget:
        budget = self._by_tenant.get(tenant)
        if budget is None:
            budget = self._by_tenant[tenant] = RetryBudget()
            if len(self._by_tenant) > MAX_TENANTS:
                self._by_tenant.popitem(last=False)
        else:
            self._by_tenant.move_to_end(tenant)
        return budget
