"""Connections from their accept to the moment when they are served: few begin in one round of the event loop.

Serving a connection costs the loop some 100 µs before anything was asked, and a TLS handshake a millisecond. A client
that opens thousands at once, or ends them, would hold up the tokens of all others. So a connection costs little more
than its accept until it has sent something, as clients of HTTP and of TLS do at once. Connections that have are begun
in turns among their sources. One whose client has left again is never begun.

Where the loop's time is charged to accounts, the first bytes also say whose account a connection seems to belong to,
before anything is done for it.
"""

from __future__ import annotations

import asyncio
import enum
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from baton_wire.fair_loop.charging import LoopAccount
from baton_wire.round_robin import RoundRobin

ACCEPTS_A_ROUND = 64
"""Connections accepted in one round of the loop, at 15 to 30 µs each; the kernel's queue holds the others."""
BEGINS_A_ROUND = 16
HANDSHAKES_A_ROUND = 4
"""Connections begun in one round of the loop, without TLS and with it."""
LOOKS_A_ROUND = 64
"""Waiting connections looked at in one round: connections whose clients have left are closed and take no turn."""


FIRST_BYTES = 4_096
"""Bytes of a client that are looked at: most heads of requests are shorter."""

Classify = Callable[[bytes, str], LoopAccount]
"""Returns the account that a connection seems to belong to, by its first bytes and its address."""


class _Client(enum.Enum):
    SILENT = enum.auto()
    SPOKE = enum.auto()
    LEFT = enum.auto()


@dataclass(frozen=True, slots=True)
class Newcomer:
    """A connection that is not served yet. `address` is its source's."""

    sock: socket.socket
    address: str
    since_s: float
    account: LoopAccount | None = None
    """The account that serving it is charged to."""


class Newcomers:
    """The newcomers of one listener, which owns their sockets until `begin` takes one or `left` reports it closed."""

    def __init__(
        self,
        begin: Callable[[Newcomer], None],
        left: Callable[[Newcomer], None],
        begins_a_round: int,
        classify: Classify | None = None,
    ) -> None:
        """`classify`: None where no accounts are kept."""
        self._classify = classify
        self._begin = begin
        self._left = left
        self._begins_a_round = begins_a_round
        self._silent: OrderedDict[socket.socket, Newcomer] = OrderedDict()
        """The longest silent first."""
        self._turns: RoundRobin[Newcomer] = RoundRobin()
        """Newcomers that have sent something, by account and address."""
        self._round: asyncio.Handle | None = None

    def add(self, newcomer: Newcomer) -> None:
        """Take over a connection that was just accepted."""
        match _look(newcomer.sock):
            case _Client.SILENT:
                self._await_bytes(newcomer)
            case _Client.SPOKE:
                self._await_turn(newcomer)
            case _Client.LEFT:
                self._close(newcomer)

    def longest_silent(self, address: str | None = None) -> Newcomer | None:
        """The connection that has waited longest without a byte: of this address, or of all."""
        return next(
            (newcomer for newcomer in self._silent.values() if address is None or newcomer.address == address), None
        )

    def close_silent(self, newcomer: Newcomer) -> None:
        self._forget(newcomer)
        self._close(newcomer)

    def close_silent_since(self, until_s: float) -> None:
        """Close the connections that have been silent since `until_s` or longer."""
        while (longest := self.longest_silent()) is not None and longest.since_s <= until_s:
            self.close_silent(longest)

    def close(self) -> None:
        """Close all of them."""
        for newcomer in list(self._silent.values()):
            self.close_silent(newcomer)
        while (waiting := self._turns.take()) is not None:
            self._close(waiting)
        if self._round is not None:
            self._round.cancel()

    def _await_bytes(self, newcomer: Newcomer) -> None:
        self._silent[newcomer.sock] = newcomer
        asyncio.get_running_loop().add_reader(newcomer.sock, self._on_bytes, newcomer)

    def _on_bytes(self, newcomer: Newcomer) -> None:
        """A silent client sent something or left: its turn will show which."""
        self._forget(newcomer)
        self._await_turn(newcomer)

    def _await_turn(self, newcomer: Newcomer) -> None:
        owner = newcomer.address
        if self._classify is not None:
            newcomer = replace(newcomer, account=self._classify(_first_bytes(newcomer.sock), newcomer.address))
            assert newcomer.account is not None
            owner = f"{newcomer.account.name} {newcomer.address}"
        self._turns.add(owner, newcomer)
        self._keep_round()

    def _keep_round(self) -> None:
        if self._round is None:
            self._round = asyncio.get_running_loop().call_soon(self._begin_some)

    def _begin_some(self) -> None:
        self._round = None
        begun = 0
        for _ in range(LOOKS_A_ROUND):
            if begun == self._begins_a_round or (newcomer := self._turns.take()) is None:
                break
            match _look(newcomer.sock):
                case _Client.SPOKE:
                    begun += 1
                    self._begin(newcomer)
                case _Client.LEFT:
                    self._close(newcomer)
                case _Client.SILENT:
                    self._await_bytes(newcomer)
        if self._turns:
            self._keep_round()

    def _forget(self, newcomer: Newcomer) -> None:
        """Stop watching a silent connection."""
        del self._silent[newcomer.sock]
        asyncio.get_running_loop().remove_reader(newcomer.sock)

    def _close(self, newcomer: Newcomer) -> None:
        newcomer.sock.close()
        self._left(newcomer)


def _first_bytes(sock: socket.socket) -> bytes:
    """Return what a client has sent so far without taking it."""
    try:
        return sock.recv(FIRST_BYTES, socket.MSG_PEEK)
    except OSError:
        return b""


def _look(sock: socket.socket) -> _Client:
    """Look at what a client has sent without taking it. A reset is seen once: looking takes the error."""
    try:
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # reset; what it sent before could still be read
            return _Client.LEFT
        return _Client.SPOKE if sock.recv(1, socket.MSG_PEEK) else _Client.LEFT
    except (BlockingIOError, InterruptedError):
        return _Client.SILENT
    except OSError:
        return _Client.LEFT
