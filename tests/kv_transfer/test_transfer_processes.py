"""Hand-overs between real processes, of which one is killed, stopped, or beset by strangers."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton_kv_transfer.prefill.transfer import PrefillTransfer
from baton_kv_transfer.transfer_parts import TransferParts
from baton_testing.kv_transfer.builders import (
    FAST,
    GEOMETRY,
    FakePool,
    PrefillRecord,
    eventually,
    fingerprint,
    first_tokens,
    key_directory,
)
from baton_testing.kv_transfer.decode_process import DecodeProcess, Ended, Expect, tokens_digest
from baton_wire.messages.values import Reason, RequestKey

TOKENS, BLOCKS = 60, tuple(range(5, 20))
pytestmark = pytest.mark.processes


@dataclass
class Prefill:
    transfer: PrefillTransfer
    pool: FakePool
    record: PrefillRecord
    epoch: bytes

    def begin(self, decode: DecodeProcess) -> bytes:
        """A request whose first half is computed; the decode worker expects it."""
        request = secrets.token_bytes(16)
        self.pool.fill(BLOCKS)
        decode.pipe.send(Expect(request, self.epoch, TOKENS, BLOCKS))
        self.transfer.opened(RequestKey(request, 1), decode.ref, TOKENS, time.monotonic() + 20.0)
        self.transfer.computed(RequestKey(request, 1), 30, BLOCKS[:8])
        return request

    def end(self, request: bytes) -> None:
        self.transfer.computed(RequestKey(request, 1), TOKENS, BLOCKS)
        self.transfer.first_tokens(RequestKey(request, 1), first_tokens(0))

    def state(self, name: str) -> int:
        return self.transfer.stats().handovers.by_state[name]  # type: ignore[index]


@pytest.fixture
async def prefill(tmp_path: Path) -> AsyncIterator[Prefill]:
    pool, record, epoch = FakePool(GEOMETRY, 32), PrefillRecord(), secrets.token_bytes(16)
    keys = key_directory(tmp_path / "keys")
    parts = TransferParts(epoch=epoch, fingerprint=fingerprint(), geometry=GEOMETRY, keys=keys, config=FAST)
    transfer = PrefillTransfer(parts, [pool], record)
    await transfer.start()
    yield Prefill(transfer, pool, record, epoch)
    await transfer.stop()


async def ended(decode: DecodeProcess) -> Ended:
    await eventually(decode.pipe.poll)
    message = decode.pipe.recv()
    assert isinstance(message, Ended)
    return message


async def hand_over(prefill: Prefill, decode: DecodeProcess) -> None:
    request = prefill.begin(decode)
    prefill.end(request)
    assert await ended(decode) == Ended(request, tokens_digest(prefill.pool, BLOCKS, TOKENS), None)
    await eventually(lambda: RequestKey(request, 1) in prefill.record.released)


async def test_kv_moves_between_two_processes(prefill: Prefill, tmp_path: Path) -> None:
    with DecodeProcess(tmp_path / "keys") as decode:
        for _ in range(5):
            await hand_over(prefill, decode)
        assert prefill.record.reports == []


async def test_a_killed_decode_worker_is_noticed_and_everything_released(prefill: Prefill, tmp_path: Path) -> None:
    with DecodeProcess(tmp_path / "keys") as decode:
        request = prefill.begin(decode)
        await eventually(lambda: prefill.state("sending"))
        decode.process.kill()
        await eventually(lambda: prefill.record.released == [RequestKey(request, 1)], timeout_s=15.0)
        assert [report[1] for report in prefill.record.reports] == [Reason.PEER_LOST]
        await eventually(lambda: prefill.transfer.stats().links == 0)


async def test_a_stopped_decode_worker_is_noticed_and_is_linked_anew_when_it_wakes(
    prefill: Prefill, tmp_path: Path
) -> None:
    with DecodeProcess(tmp_path / "keys") as decode:
        request = prefill.begin(decode)
        await eventually(lambda: prefill.state("sending"))
        assert decode.process.pid is not None
        os.kill(decode.process.pid, signal.SIGSTOP)
        await eventually(lambda: prefill.record.released == [RequestKey(request, 1)], timeout_s=15.0)
        assert [report[1] for report in prefill.record.reports] == [Reason.PEER_LOST]
        os.kill(decode.process.pid, signal.SIGCONT)
        assert await ended(decode) == Ended(request, None, Reason.PEER_LOST)
        await hand_over(prefill, decode)


async def test_strangers_that_never_shake_hands_lock_nobody_out(prefill: Prefill, tmp_path: Path) -> None:
    with DecodeProcess(tmp_path / "keys") as decode:
        strangers = []
        for number in range(150):
            stranger = socket.create_connection(("127.0.0.1", decode.port))
            if number % 2:
                stranger.sendall(b"GET / HTTP/1.1\r\n")
            strangers.append(stranger)
        await hand_over(prefill, decode)
        for stranger in strangers:
            stranger.close()
        await asyncio.sleep(0)
