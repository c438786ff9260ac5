"""How namespaces are watched: one by itself, more through shared streams or one by one, too many not at all."""

from __future__ import annotations

import asyncio
import ssl
from asyncio import sslproto
from pathlib import Path
from typing import Any

import pytest

from baton_operator.kube.kinds import JOBS
from baton_operator.kube.kube_api import Forbidden, Listing, Resource, Unavailable
from baton_operator.kube.streams import (
    KINDS,
    LEAST,
    SPARE_FILES,
    TLS_BUFFER,
    TooManyNamespaces,
    most_namespaces,
    scopes_for,
    shrink_read_buffers,
)
from baton_testing.kube.api_server import _certificates
from baton_testing.kube.defaults import Kinds
from baton_testing.kube.memory import MemoryKube
from baton_testing.kube.store import Store
from baton_testing.virtual_time.loop import run_virtual

MANY = tuple(f"team-{number}" for number in range(200))


class Rights(MemoryKube):
    """Lists cluster-wide of all kinds but one."""

    def __init__(self, refused: Resource | None = None, failures: int = 0) -> None:
        super().__init__(Store(Kinds(), lambda: "now"))
        self._refused, self._failures = refused, failures

    async def list(self, resource: Resource, namespace: str | None, selector: str = "", *, fields: str = "") -> Listing:
        if self._failures:
            self._failures -= 1
            raise Unavailable("away")
        if resource == self._refused:
            raise Forbidden(f"{resource.plural} is forbidden")
        return await super().list(resource, namespace, selector, fields=fields)


def test_one_is_watched_by_itself_and_nobody_is_asked() -> None:
    api = Rights()
    assert run_virtual(scopes_for(api, MANY[:1], 1024)) == MANY[:1]
    assert run_virtual(scopes_for(api, None, 1024)) == (None,)
    assert sum(api.calls.values()) == 0


@pytest.mark.parametrize("namespaces", [MANY[:2], MANY])
def test_more_share_streams_where_everything_may_be_listed_even_if_the_server_answers_late(
    namespaces: tuple[str, ...],
) -> None:
    assert run_virtual(scopes_for(Rights(failures=3), namespaces, 1024)) == (None,)


def test_without_that_right_as_many_are_watched_as_files_may_be_open_and_more_are_refused_by_name() -> None:
    enough = SPARE_FILES + KINDS * len(MANY)
    assert run_virtual(scopes_for(Rights(JOBS), MANY, enough)) == MANY
    with pytest.raises(
        TooManyNamespaces, match=r"--namespaces: 200 are not allowed: must be at most 199.*sharedStreams"
    ):
        run_virtual(scopes_for(Rights(JOBS), MANY, enough - 1))
    assert most_namespaces(0) == LEAST
    assert run_virtual(scopes_for(Rights(JOBS), MANY[:LEAST], 0)) == MANY[:LEAST]


async def test_connections_keep_small_buffers_and_lose_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", sslproto.SSLProtocol.max_size)  # put back afterwards
    shrink_read_buffers()
    _certificates(tmp_path)
    serving, asking = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=tmp_path / "ca.crt")
    serving.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    sent = bytes(range(256)) * 8192

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=asking)
        transport: Any = writer.transport
        assert len(transport._ssl_protocol._ssl_buffer) == TLS_BUFFER
        assert await asyncio.wait_for(reader.read(), 30.0) == sent
        writer.close()
