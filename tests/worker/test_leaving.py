"""A worker that has to stop: its gateways learn of it before it refuses their requests."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton_decode_worker.service import DecodeService
from baton_prefill_worker.service import PrefillService
from baton_testing.processes.quiet_ends import QuietEngine, RecordingLink
from baton_wire.messages.gateway_link import LegFailed, Prefill, Reserve
from baton_wire.messages.values import (
    POOL_ROLES,
    Address,
    Message,
    PeerRef,
    Reason,
    RequestKey,
    Role,
    SamplingParams,
    pack_ids,
)
from baton_wire.stop_signals import WITHOUT_MEANING
from baton_worker.building.parts import RequestLimits
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.serving import process
from baton_worker.serving.process import Stop

SAMPLING = SamplingParams(max_tokens=4, temperature=0)


class QuietTransfer:
    def opened(self, key: RequestKey, peer: PeerRef, total_tokens: int, deadline_s: float) -> None: ...


def leg(role: Role, attempt: int) -> Message:
    ids, request = pack_ids([5]), bytes(range(16))
    if role is Role.DECODE:
        return Reserve(request, attempt, ids, 1, (0,), SAMPLING, 30.0, "", bytes(16))
    return Prefill(request, attempt, ids, 1, (0,), SAMPLING, 30.0, "", PeerRef(Address("127.0.0.1", 1), bytes(16)))


@pytest.mark.parametrize("role", POOL_ROLES)
async def test_what_was_sent_before_a_drain_was_heard_of_is_taken_and_nothing_after(role: Role) -> None:
    """Found with real Pods: the last decode worker of a revision refused at once, while the request's first token went
    from its prefill worker to the client, who then waited in vain."""
    limits, metrics, loop = RequestLimits(100, 32, 1), WorkerMetrics(role), asyncio.get_running_loop()
    service: DecodeService | PrefillService
    if role is Role.DECODE:
        service = DecodeService(limits, metrics, loop)
    else:
        service = PrefillService(limits, metrics, loop)
        service.transfer = QuietTransfer()  # type: ignore[assignment]
    service.attach(QuietEngine())
    link = RecordingLink()
    service.leave()
    assert service.state().draining
    service.handle(link, leg(role, 1))
    assert (link.received, service.open_requests) == ([], 1)
    service.drain()
    service.handle(link, leg(role, 2))
    [refused] = link.received
    assert isinstance(refused, LegFailed)
    assert (refused.attempt, refused.reason, service.open_requests) == (2, Reason.DRAINING, 1)


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_address_that_cannot_be_announced_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But where a disk is full: another process is to try again, and status 2 would end everything."""
    place = tmp_path / "missing" / "d0.json"
    monkeypatch.setattr(gc, "collect", lambda: 0)  # which takes long in a process of many tests
    config = SimpleNamespace(announce=place, listen=SimpleNamespace(host="127.0.0.1"), role=Role.DECODE)
    try:
        with pytest.raises(ConfigError, match=f"argument --announce: {place}: No such file or directory"):
            process.report_ready(cast(Any, config), b"e" * 16, 1, None)
        monkeypatch.setattr(process, "announce", full)
        with pytest.raises(OSError, match="No space left on device"):
            process.report_ready(cast(Any, config), b"e" * 16, 1, None)
    finally:
        gc.unfreeze()


async def test_a_worker_drains_when_its_terminal_goes() -> None:
    async def serve(config: WorkerConfig, stop: Stop) -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
            async with asyncio.timeout(10.0):
                await stop.draining.wait()
        await asyncio.sleep(0.01)
        assert not stop.now.is_set()
        os.kill(os.getpid(), signal.SIGTERM)  # the same stop, by a service manager
        await asyncio.sleep(0.01)
        assert not stop.now.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(10.0):
            await stop.now.wait()

    loop = asyncio.get_running_loop()
    interval, handler = sys.getswitchinterval(), loop.get_exception_handler()
    try:
        assert await process._run(cast(Any, None), serve) == 0
    finally:
        sys.setswitchinterval(interval)
        loop.set_exception_handler(handler)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)
        for number in WITHOUT_MEANING:
            signal.signal(number, signal.SIG_DFL)
