"""Connections from their accept to the moment when they are served, which begins in turns.

Serving a connection costs the loop some 200 µs before anything was asked, and a TLS handshake a millisecond. A client
that opens thousands at once, or ends them, would hold up the tokens of all others. So a connection costs little more
than its accept until it has sent something, as clients of HTTP and of TLS do at once. Connections that have are begun
in turns among their sources. One whose client has left again is never begun.

Where the loop's time is charged to accounts, the first bytes also say whose account a connection seems to belong to,
before anything is done for it. It begins when that account has its turn, and is charged to it. Connections that say
nothing, or name no account, are strangers: where places are short they give way to all others.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextvars import Context, copy_context
from dataclasses import dataclass
from typing import NamedTuple

from baton_wire.fair_loop.charging import LoopAccount, charged_context
from baton_wire.listening.connection_book import ConnectionBook, ConnectionPlace
from baton_wire.round_robin import RoundRobin

BEGINS_A_ROUND = 16
HANDSHAKES_A_ROUND = 4
"""Connections begun in one round of the loop, without TLS and with it."""
LOOKS_A_ROUND = 64
"""Waiting connections looked at in one round: connections whose clients have left are closed and take no turn."""
LOOKS_A_TURN = 16
"""The same of one account in its turn, which begins one connection."""
FIRST_BYTES = 4_096
"""Bytes of a client that are looked at: most heads of requests are shorter."""

Classify = Callable[[bytes, str], LoopAccount]
"""Returns the account that a connection seems to belong to, by its first bytes and its address."""


@dataclass(frozen=True, slots=True)
class ListenerAccounts:
    """The accounts that the loop's time for connections is charged to."""

    listener: LoopAccount
    """Accepting."""
    classify: Classify
    """Whose account serves a connection."""
    strangers: LoopAccount
    """The account of connections that name no other."""


class Newcomer(NamedTuple):
    """A connection that is not served yet."""

    sock: socket.socket
    place: ConnectionPlace
    since_s: float
    has_spoken: bool = False
    account: LoopAccount | None = None
    """The account that serving it is charged to."""


class _Line:
    """Newcomers of one account that have sent something, in turns among their addresses."""

    def __init__(self, account: LoopAccount | None) -> None:
        self.waiting: RoundRobin[Newcomer] = RoundRobin()
        self.context: Context = copy_context() if account is None else charged_context(account)
        """The context of their turns."""
        self.turn: asyncio.Handle | None = None


class Newcomers:
    """The newcomers of one listener, which owns their sockets until `begin` takes one or `left` reports it closed."""

    def __init__(
        self,
        book: ConnectionBook,
        begin: Callable[[Newcomer], None],
        left: Callable[[Newcomer], None],
        begins_a_round: int,
        accounts: ListenerAccounts | None = None,
    ) -> None:
        """`accounts`: None where none are kept. With accounts, one connection begins in each turn of its account."""
        self._book = book
        self._accounts = accounts
        self._strangers = None if accounts is None else accounts.strangers.name
        self._begin = begin
        self._left = left
        self._begins, self._looks = (begins_a_round, LOOKS_A_ROUND) if accounts is None else (1, LOOKS_A_TURN)
        self._silent: OrderedDict[socket.socket, Newcomer] = OrderedDict()
        """The longest silent first."""
        self._lines: dict[LoopAccount | None, _Line] = {}
        """The lines in which newcomers wait, by account."""

    def look(self, sock: socket.socket, address: str, now: float) -> Newcomer | None:
        """Return a connection that was just accepted, with what its client has sent; None: the client has left. It has
        no place yet."""
        newcomer = self._looked_at(Newcomer(sock, ConnectionPlace(address, self._strangers), now))
        if newcomer is None or newcomer.account is None:
            return newcomer
        return newcomer._replace(place=ConnectionPlace(address, newcomer.account.name))

    def add(self, newcomer: Newcomer) -> None:
        """Take over a connection."""
        if newcomer.has_spoken:
            self._await_turn(newcomer)
        else:
            self._await_bytes(newcomer)

    def is_stranger(self, newcomer: Newcomer) -> bool:
        """Return whether a newcomer gives way to others: it named no account, and others may."""
        return self._strangers is not None and newcomer.place.owner == self._strangers

    @property
    def has_strangers(self) -> bool:
        return self._accounts is not None and (bool(self._silent) or self._accounts.strangers in self._lines)

    def close_stranger(self, address: str | None, silent_until_s: float, until_s: float) -> bool:
        """Close a stranger, of this address, or of all: the one that has been silent longest, since `silent_until_s` or
        longer, or else the next one that waits for its turn, since `until_s` or longer. False: there is none."""
        if self._accounts is None:
            return False
        silent = self.longest_silent(address)
        if silent is not None and silent.since_s <= silent_until_s:
            self.close_silent(silent)
            return True
        line = self._lines.get(self._accounts.strangers)
        first = None if line is None else line.waiting.first(address)
        if line is None or first is None or first.since_s > until_s:
            return False
        line.waiting.take(first.place.address)
        self._close(first)
        return True

    def longest_silent(self, address: str | None = None) -> Newcomer | None:
        """The connection that has waited longest without a byte: of this address, or of all."""
        return next(
            (newcomer for newcomer in self._silent.values() if address is None or newcomer.place.address == address),
            None,
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
        for line in self._lines.values():
            while (waiting := line.waiting.take()) is not None:
                self._close(waiting)
            if line.turn is not None:
                line.turn.cancel()
        self._lines.clear()

    def _looked_at(self, newcomer: Newcomer) -> Newcomer | None:
        """Look at what a client has sent; None: it has left."""
        first_bytes = _peek(newcomer.sock, 1 if self._accounts is None else FIRST_BYTES)
        if first_bytes is None:
            return newcomer
        if not first_bytes:
            return None
        account = None if self._accounts is None else self._accounts.classify(first_bytes, newcomer.place.address)
        return newcomer._replace(has_spoken=True, account=account)

    def _await_bytes(self, newcomer: Newcomer) -> None:
        self._silent[newcomer.sock] = newcomer
        asyncio.get_running_loop().add_reader(newcomer.sock, self._on_bytes, newcomer)

    def _on_bytes(self, newcomer: Newcomer) -> None:
        """A silent client sent something or left."""
        if (seen := self._looked_at(newcomer)) is None:
            self.close_silent(newcomer)
        elif seen.has_spoken:
            self._forget(newcomer)
            owner = None if seen.account is None else seen.account.name
            self._await_turn(seen._replace(place=self._book.move(seen.place, owner)))

    def _await_turn(self, newcomer: Newcomer) -> None:
        line = self._lines.get(newcomer.account)
        if line is None:
            line = self._lines[newcomer.account] = _Line(newcomer.account)
        line.waiting.add(newcomer.place.address, newcomer)
        if line.turn is None:
            self._keep_turn(newcomer.account, line)

    def _keep_turn(self, account: LoopAccount | None, line: _Line) -> None:
        line.turn = asyncio.get_running_loop().call_soon(self._begin_some, account, line, context=line.context)

    def _begin_some(self, account: LoopAccount | None, line: _Line) -> None:
        line.turn = None
        begun = 0
        for _ in range(self._looks):
            if begun == self._begins or (newcomer := line.waiting.take()) is None:
                break
            if _peek(newcomer.sock, 1) == b"":
                self._close(newcomer)
            else:
                begun += 1
                self._begin(newcomer)
        if line.waiting:
            self._keep_turn(account, line)
        else:
            del self._lines[account]

    def _forget(self, newcomer: Newcomer) -> None:
        """Stop watching a silent connection."""
        del self._silent[newcomer.sock]
        asyncio.get_running_loop().remove_reader(newcomer.sock)

    def _close(self, newcomer: Newcomer) -> None:
        newcomer.sock.close()
        self._left(newcomer)


def _peek(sock: socket.socket, count: int) -> bytes | None:
    """Return what a client has sent so far without taking it; None: nothing yet. Nothing at all: it has left.

    A reset is seen once: looking takes the error.
    """
    try:
        first_bytes = sock.recv(count, socket.MSG_PEEK)
        # What a client has sent before its reset can still be read.
        return b"" if first_bytes and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) else first_bytes
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:
        return b""
