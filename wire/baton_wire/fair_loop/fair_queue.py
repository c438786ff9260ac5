"""A queue that shares a server's time between accounts by weight, whatever each item costs. Pure.

Start-time fair queueing (Goyal, Vin and Cheng 1996): every account has a virtual time, which advances by the cost of
its items divided by its weight, and the account with the least goes next. An account that had nothing to do starts at
the virtual time of the item in service: it goes next, but saves up nothing. Items of one account keep their order.

Costs are known only after an item was served, so an account is at most one item ahead of its share. Services have their
weights. All other accounts that have items share one part, of weight 1. They are not one account among the services,
though: an item of one that took long would hold up the others then, until the services have had as much.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, TypeVar

T = TypeVar("T")
LEAST_COST_S = 1e-6
"""The cost of an item that a coarse clock measures as nothing."""
SHORT_S = 100e-6
"""The cost of a short item."""


class Account(Generic[T]):
    """A share of the server's time, and the items that wait for it. Of one queue. Its weight never changes."""

    __slots__ = ("__weakref__", "is_active", "is_service", "items", "name", "spent_s", "virtual_s", "weight")

    def __init__(self, name: str, weight: float = 1.0, is_service: bool = False) -> None:
        """`is_service`: its weight counts next to that of all other accounts together, which is 1 (`FairQueue`)."""
        self.name = name
        self.weight = weight
        self.is_service = is_service
        self.virtual_s = 0.0
        self.spent_s = 0.0
        """The time that its items took."""
        self.items: deque[T] = deque()
        self.is_active = False

    def __repr__(self) -> str:
        return f"<Account {self.name}, weight {self.weight:g}, {len(self.items)} items>"


class FairQueue(Generic[T]):
    """Items of services, and of other accounts that share one part next to the services.

    A service of weight 1 gets as much as all other accounts together, however many and heavy they are.

    >>> queue: FairQueue[str] = FairQueue()
    >>> many, few = Account[str]("many"), Account[str]("few")
    >>> for item in ("m1", "m2", "m3"):
    ...     queue.add(many, item)
    >>> queue.add(few, "f1")
    >>> order = []
    >>> while queue:
    ...     order.append(queue.take())
    ...     queue.charge(0.001)
    >>> order
    ['m1', 'f1', 'm2', 'm3']
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Account[T]]] = []
        """A heap of the active accounts except the current one, by virtual time, then by arrival."""
        self._current: Account[T] | None = None
        """The account of the item that was taken last."""
        self._virtual_s = 0.0
        """The virtual time at which the item in service started."""
        self._num_pushed = self._num_items = self._num_others = 0
        self._others_weight = 0.0
        """The weight of the active accounts that are no services, which are `_num_others`."""

    def __len__(self) -> int:
        return self._num_items

    def add(self, account: Account[T], item: T) -> None:
        """Add an item after those of its account."""
        account.items.append(item)
        self._num_items += 1
        if not account.is_active:
            self._activate(account)

    def take(self) -> T:
        """Remove the next item; there must be one. `charge` its cost before the next one is taken."""
        account, waiting = self._current, self._waiting
        if account is None or not account.items or (waiting and waiting[0][0] < account.virtual_s):
            if account is not None:
                if account.items:
                    self._push(account)
                else:
                    self._deactivate(account)
            self._current = account = heappop(waiting)[2]
        self._virtual_s = account.virtual_s
        self._num_items -= 1
        return account.items.popleft()

    def charge(self, cost_s: float) -> None:
        """Charge the cost of the item that was taken last to its account."""
        if cost_s < LEAST_COST_S:
            cost_s = LEAST_COST_S
        account = self._current
        assert account is not None
        account.spent_s += cost_s
        if account.is_service:
            account.virtual_s += cost_s / account.weight
        else:
            account.virtual_s += cost_s * self._others_weight / account.weight

    def clear(self) -> None:
        """Remove all items."""
        accounts = [account for _, _, account in self._waiting]
        accounts += [] if self._current is None else [self._current]
        for account in accounts:
            account.items.clear()
            account.is_active = False
        self._waiting, self._current = [], None
        self._num_items = self._num_others = 0
        self._others_weight = 0.0

    def _activate(self, account: Account[T]) -> None:
        """Let an account take part that had no items, and has one now.

        An account that shares its part with many starts later by the cost of a short item: it is served in time, and
        a thousand of them do not come before a service.
        """
        account.is_active = True
        start_s = self._virtual_s
        if not account.is_service:
            self._num_others += 1
            self._others_weight += account.weight
            start_s += SHORT_S * (self._others_weight / account.weight - 1.0)
        account.virtual_s = max(account.virtual_s, start_s)
        self._push(account)

    def _deactivate(self, account: Account[T]) -> None:
        account.is_active = False
        if not account.is_service:
            self._num_others -= 1
            self._others_weight = self._others_weight - account.weight if self._num_others else 0.0

    def _push(self, account: Account[T]) -> None:
        self._num_pushed += 1
        heappush(self._waiting, (account.virtual_s, self._num_pushed, account))
