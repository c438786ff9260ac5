"""A worker in this process, with a paced engine: it starts, serves and drains in order, and stops what it started."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from baton_decode_worker.service import DecodeService
from baton_testing.engine import tiny_llama
from baton_wire.keys import KeyDirectory, write_new_key
from baton_wire.messages.values import Role
from baton_wire.rules.step_times import DecodeTimes, PacedTimes, PrefillTimes
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig, parse
from baton_worker.errors import ConfigError
from baton_worker.reporting.metrics import WorkerMetrics
from baton_worker.reporting.views import TransferView
from baton_worker.serving import lifecycle
from baton_worker.serving.process import Stop

TIMES = PacedTimes(
    label="round figures",
    prefill=PrefillTimes(fixed_s=0.01, per_token_s=0.001, per_pair_s=0.0),
    decode=DecodeTimes(0.02, per_sequence_s=0.001, over_knee_s=0.01, per_kv_token_s=0.0001, knee=8.0, pad_to=4),
    kv_capacity_tokens=4096,
)
NOTHING_MOVED = TransferView(None, 0, 0, 0, 0, 0)


class RecordedService(DecodeService):
    """A decode worker's messenger that records what it is asked for."""

    log: list[str]

    def leave(self) -> None:
        self.log.append("leave")
        super().leave()

    def drain(self) -> None:
        self.log.append("drain")
        super().drain()


class RecordedTransfer:
    def __init__(self, log: list[str], error: OSError | None) -> None:
        self._log, self._error = log, error

    async def start(self) -> None:
        self._log.append(f"start in {threading.current_thread().name}")
        if self._error is not None:
            raise self._error

    async def stop(self) -> None:
        self._log.append(f"stop in {threading.current_thread().name}")


def role_of(log: list[str], error: OSError | None = None) -> lifecycle.BuildRole:
    def build(
        config: WorkerConfig, parts: EngineParts, keys: KeyDirectory, epoch: bytes, metrics: WorkerMetrics
    ) -> lifecycle.RoleParts:
        service = RecordedService(parts.limits, metrics, asyncio.get_running_loop())
        service.log = log
        return lifecycle.RoleParts(
            service=service,
            transfer=RecordedTransfer(log, error),
            pair_port=lambda: 1,
            transfer_view=lambda: NOTHING_MOVED,
            is_idle=lambda: True,
        )

    return build


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerConfig]:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # which takes long in a process of many tests
    (tmp_path / "keys").mkdir()
    write_new_key(tmp_path / "keys", "test")
    (tmp_path / "times.json").write_bytes(msgspec.json.encode(TIMES))
    yield parse(
        Role.DECODE,
        (
            *(
                f"--model={tiny_llama.FOLDER}",
                "--served-name=tiny",
                "--listen=127.0.0.1:0",
                f"--keys={tmp_path / 'keys'}",
            ),
            *(f"--announce={tmp_path / 'announced'}", f"--paced={tmp_path / 'times.json'}"),
        ),
    )
    gc.unfreeze()


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()} & {"engine", "transfer"}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not holds():  # noqa: ASYNC110 - a file appears
            await asyncio.sleep(0.005)


async def test_a_worker_starts_its_transfer_drains_when_asked_and_stops_what_it_started(config: WorkerConfig) -> None:
    log, stop = list[str](), Stop()
    serving = asyncio.create_task(lifecycle.serve(config, stop, role_of(log)))
    announced = config.announce
    assert announced is not None
    await until(lambda: announced.is_file() or serving.done())
    assert log == ["start in transfer"]
    assert threads() == {"engine", "transfer"}
    stop.on_signal()
    async with asyncio.timeout(60.0):
        await serving
    assert log == ["start in transfer", "leave", "drain", "stop in transfer"]
    assert threads() == set()


async def test_a_worker_whose_transfer_cannot_start_ends_with_its_reason_and_leaves_no_thread(
    config: WorkerConfig,
) -> None:
    log = list[str]()
    with pytest.raises(ConfigError, match=r"argument --pair-listen: 127\.0\.0\.1:0: no such address"):
        await lifecycle.serve(config, Stop(), role_of(log, OSError("no such address")))
    assert log == ["start in transfer"]
    assert threads() == set()
    assert config.announce is not None
    assert not config.announce.exists()
