"""Connections to a decode worker's port that prove nothing, and a machine that has no descriptors left for more."""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from typing import NoReturn

import pytest

from baton_kv_transfer import network
from baton_kv_transfer.network import SocketListener
from baton_testing.kv_transfer.transfer_pair import Pair
from baton_wire.handshake import OFFER_BYTES
from baton_wire.listening.handshake_pool import MAX_HANDSHAKES


async def test_strangers_of_one_address_do_not_end_the_handshake_of_another(pair: Pair) -> None:
    async with pair() as (_, decode):
        port, strangers = decode.transfer.port, []
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await reader.readexactly(OFFER_BYTES)
        for _ in range(MAX_HANDSHAKES + 20):
            _, stranger = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            strangers.append(stranger)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                assert await reader.read(1) == b"", "nothing more is offered"
                pytest.fail("the slow handshake was ended for strangers of another address")
        for connection in (*strangers, writer):
            connection.transport.abort()


class _NoDescriptors(socket.socket):
    tries = 0

    def accept(self) -> NoReturn:
        _NoDescriptors.tries += 1
        raise OSError(errno.EMFILE, "Too many open files")


async def test_no_descriptor_for_a_pair_link_is_tried_again_later_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(network, "ACCEPT_AGAIN_S", 0.05)
    monkeypatch.setattr(_NoDescriptors, "tries", 0)
    with _NoDescriptors() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listener = SocketListener(listening, lambda connection: None)
        with socket.create_connection(("127.0.0.1", listener.port)):
            await asyncio.sleep(0.22)
        listener.close()
    assert 2 <= _NoDescriptors.tries <= 6
    assert caplog.text.count("Too many open files") == 1
