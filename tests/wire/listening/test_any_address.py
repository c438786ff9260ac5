"""Listeners on every address: both families where the machine has both, and IPv4 alone where IPv6 is disabled."""

from __future__ import annotations

import errno
import socket

import pytest

from baton_wire.listening.sockets import ANY, bind

NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def has_ipv6() -> bool:
    try:
        with bind("::1", 0):
            return True
    except OSError:
        return False


def dial(host: str, port: int) -> None:
    socket.create_connection((host, port), timeout=10).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_listener_on_every_address_is_reached_by_both_families(host: str) -> None:
    if host == "::1" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with bind(ANY, 0) as listening:
        listening.listen()
        dial(host, listening.getsockname()[1])


class NoIPv6(socket.socket):
    """A socket on a machine without IPv6."""

    failure = errno.EAFNOSUPPORT

    def __init__(self, family: int = socket.AF_INET, kind: int = socket.SOCK_STREAM) -> None:
        if family == socket.AF_INET6:
            raise OSError(self.failure, "no IPv6")
        super().__init__(family, kind)


@pytest.mark.parametrize("failure", NO_IPV6, ids=errno.errorcode.get)
def test_without_ipv6_it_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch, failure: int) -> None:
    monkeypatch.setattr(NoIPv6, "failure", failure)
    monkeypatch.setattr(socket, "socket", NoIPv6)
    with bind(ANY, 0) as listening:
        assert listening.family == socket.AF_INET
        listening.listen()
        port = listening.getsockname()[1]
        monkeypatch.undo()
        dial("127.0.0.1", port)


def test_a_named_address_never_becomes_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", NoIPv6)
    with pytest.raises(OSError, match="no IPv6"):
        bind("::1", 0)


def test_a_port_that_is_taken_is_an_error_in_both_families() -> None:
    with bind(ANY, 0) as first:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            bind(ANY, first.getsockname()[1])
