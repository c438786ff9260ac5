"""Places among the links of a deployment's gateways: one for each process that proved its key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from baton_control.telemetry import telemetry_server
from baton_gateway.reporting.operator_link import OperatorTimes
from baton_testing.gateway.gateway_process import until
from baton_testing.sizing.telemetry_links import (
    KEY,
    TIMES,
    UPGRADE,
    arrivals,
    keys_in,
    linking,
    operating,
)
from baton_wire.listening.handshake_pool import MAX_HANDSHAKES


async def _flood(port: int, opened: list[int]) -> None:
    """A stranger that asks for a link, proves nothing and comes again when it is closed."""
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened[0] += 1
        try:
            writer.write(UPGRADE)
            await reader.read(-1)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()


async def test_strangers_that_prove_nothing_take_no_place_of_a_gateway_and_fill_no_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry_server, "MAX_LINKS", 2)
    keys, opened = keys_in(tmp_path), [0]
    async with operating(keys) as operator:
        began_s = time.monotonic()
        strangers = [asyncio.create_task(_flood(operator.port, opened)) for _ in range(MAX_HANDSHAKES + 40)]
        await until(lambda: opened[0] > 2 * MAX_HANDSHAKES)  # some were closed for others and came again
        for _ in range(2):  # a gateway is killed, and its successor links as the first one did
            async with linking(keys, operator.url) as gateway:
                await until(lambda: gateway.link.is_linked)
        seconds = time.monotonic() - began_s
        for stranger in strangers:
            stranger.cancel()
        await asyncio.gather(*strangers, return_exceptions=True)
    assert caplog.text.count("refused") <= 1 + seconds
    assert len([record for record in caplog.records if record.levelname != "INFO"]) <= 2 * (1 + seconds)


async def test_a_gateway_that_dials_again_replaces_its_own_link(tmp_path: Path) -> None:
    """Its old link may look alive here for seconds; when that ends, the new one must not be taken for gone."""
    keys, never = keys_in(tmp_path), OperatorTimes(first_retry_s=600.0, last_retry_s=600.0)
    async with operating(keys) as operator:
        store = operator.server.store(KEY)
        async with linking(keys, operator.url, never) as former:
            await until(lambda: store.has_links)
            async with linking(keys, operator.url, TIMES) as gateway:
                await until(lambda: gateway.link.is_linked and not former.link.is_linked)
                await until(arrivals(operator))
                store.take_arrivals(time.monotonic(), 1)
                await until(arrivals(operator))  # it is still heard


async def test_gateways_beyond_the_bound_are_refused_after_their_proof(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(telemetry_server, "MAX_LINKS", 0)
    keys = keys_in(tmp_path)
    async with operating(keys) as operator, linking(keys, operator.url):
        await until(lambda: "there are 0 already" in caplog.text)
        assert not operator.server.store(KEY).has_links
