"""Calls from any thread that run in the transfer thread's loop, in the order in which they were made."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Mailbox:
    """The way into a loop from other threads. Calls are dropped while it is closed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Deliver to the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._loop = None

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` in the loop soon."""
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(call)


class HasMailbox(Protocol):
    @property
    def mailbox(self) -> Mailbox: ...


S = TypeVar("S", bound=HasMailbox)
P = ParamSpec("P")


def posted(method: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Let any thread call `method`: the caller returns at once, the body runs in the loop of the object's mailbox."""

    @functools.wraps(method)
    def post(self: S, /, *args: P.args, **kwargs: P.kwargs) -> None:
        self.mailbox.post(lambda: method(self, *args, **kwargs))

    return post
