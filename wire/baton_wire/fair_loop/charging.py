"""Whom the loop's time is charged to: an account in the context of each callback.

A callback runs in the context in which it was scheduled, and a task's context is copied from its creator's. So all
work of a connection has the same `LoopCharge`, also what its tasks begin. Its account may change: the connection turns
out to be a tenant's.
"""

from __future__ import annotations

from asyncio import Handle
from contextvars import Context, ContextVar, copy_context
from typing import TypeAlias

from baton_wire.fair_loop.fair_queue import Account

LoopAccount: TypeAlias = Account[Handle]


class LoopCharge:
    """The account that some work is charged to now."""

    __slots__ = ("account",)

    def __init__(self, account: LoopAccount) -> None:
        self.account = account


CHARGE: ContextVar[LoopCharge | None] = ContextVar("CHARGE", default=None)
"""None: work of the process itself, for which the loop has an account of its own."""


def begin_charge(account: LoopAccount) -> None:
    """LoopCharge what the current context does from now on to an account, apart from its creator's work."""
    CHARGE.set(LoopCharge(account))


def charge_to(account: LoopAccount) -> None:
    """Change the account of the current work, with all its tasks and callbacks. The process's own stays its own."""
    charge = CHARGE.get()
    if charge is not None:
        charge.account = account


def process_context() -> Context:
    """Return a copy of the current context for work of the process itself, such as what is done for all at once."""
    context = copy_context()
    context.run(CHARGE.set, None)
    return context


def charged_context(account: LoopAccount) -> Context:
    """Return a copy of the current context for work that is charged to an account."""
    context = copy_context()
    context.run(begin_charge, account)
    return context
