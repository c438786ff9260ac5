"""Strangers that ask a worker for a link and prove nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton_wire.handshake import OFFER_BYTES, PROOF_BYTES
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.listening.handshake_pool import MAX_HANDSHAKES
from baton_wire.messages.values import Role
from baton_wire.session import AlteredFrames
from baton_worker.config import ListenAddress
from baton_worker.serving import process
from baton_worker.serving.gateway_links import GatewayLinks

UPGRADE = (
    b"GET /link HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
HEADER = b"\x82\xfe" + PROOF_BYTES.to_bytes(2) + bytes(4)
"""Header of a masked frame that is as long as a proof."""


def gateway_links(keys: Path) -> GatewayLinks:
    write_new_key(keys, "k1")
    hello = SimpleNamespace(role=Role.DECODE, epoch=b"w" * 16)
    return GatewayLinks(lambda: cast(Any, hello), b"", KeyDirectory(keys), cast(Any, None), AlteredFrames())


async def ask_for_link(port: int, host: str = "127.0.0.1") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
    writer.write(UPGRADE)
    return reader, writer


async def offered(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(4 + OFFER_BYTES)


async def test_they_do_not_end_the_handshake_of_another_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with process.listening(gateway_links(tmp_path).accept, ListenAddress("127.0.0.1", 0)) as port:
        reader, writer = await ask_for_link(port)
        await offered(reader)
        strangers = [await ask_for_link(port, "127.0.0.2") for _ in range(MAX_HANDSHAKES + 20)]
        async with asyncio.timeout(10.0):
            with suppress(ConnectionError):  # the first of them is closed for the last ones
                await strangers[0][0].read(-1)
        writer.write(HEADER + bytes(PROOF_BYTES))
        async with asyncio.timeout(10.0):
            assert (await reader.readexactly(1)) == b"\x88", "a close frame says that the proof was wrong"
        for _, peer_writer in (*strangers, (reader, writer)):
            peer_writer.transport.abort()
    assert "proof: the peer does not speak this protocol" in caplog.text


async def test_their_wrong_proofs_are_said_once_a_second(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with process.listening(gateway_links(tmp_path).accept, ListenAddress("127.0.0.1", 0)) as port:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for _ in range(40):
            reader, writer = await ask_for_link(port)
            await offered(reader)
            writer.write(HEADER + bytes(PROOF_BYTES))
            await reader.readexactly(1)
            writer.transport.abort()
        assert 1 <= caplog.text.count("gateway link refused") <= 2 + loop.time() - began_s
