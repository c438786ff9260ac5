"""Discovery files and proxies of workers that are replaced while other threads publish."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from baton_testing.processes.child_process import Child
from baton_testing.processes.deployment import Deployment, Shape, Worker
from baton_testing.processes.tampered_deployment import PROXIES_HOST, BehindProxies

PUBLISHERS = 4


def worker(folder: Path, name: str, port: int = 0, pair_port: int | None = None) -> Worker:
    """A worker with a process that ends at once; without a port it has not announced itself."""
    child = Child(name, ("-c", ""), folder)
    child.wait(60.0)
    return Worker(name.partition("-")[0], child, folder / f"{name}.json", "127.0.0.1", port, pair_port)


def read_workers(folder: Path, role: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((folder / f"{role}-workers.json").read_text())
    return rows


def test_a_worker_that_has_not_announced_itself_is_not_published(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path)
    deployment.workers = [worker(tmp_path, "prefill-0", 7_001), worker(tmp_path, "prefill-1")]
    deployment.publish()
    assert read_workers(tmp_path, "prefill") == [{"host": "127.0.0.1", "port": 7_001}]


async def test_a_worker_that_starts_while_another_is_published_gets_proxies_at_the_ports_it_announces_later(
    tmp_path: Path,
) -> None:
    proxied = []

    async def start_proxies(ready: Worker) -> None:
        proxied.append((ready.child.name, ready.port, ready.pair_port))

    service = BehindProxies(tmp_path, Shape(), start_proxies)
    starting = worker(tmp_path, "decode-1")
    service.workers = [worker(tmp_path, "prefill-0", 7_001), starting]
    await asyncio.to_thread(service.publish)
    assert proxied == [("prefill-0", 7_001, None)]
    starting.port, starting.pair_port = 7_002, 7_003
    await asyncio.to_thread(service.publish)
    assert proxied == [("prefill-0", 7_001, None), ("decode-1", 7_002, 7_003)]
    assert read_workers(tmp_path, "decode") == [{"host": PROXIES_HOST, "port": 7_002, "pair_port": 7_003}]


async def test_threads_that_publish_at_the_same_time_start_the_proxies_of_a_worker_once(tmp_path: Path) -> None:
    proxied = []

    async def start_proxies(ready: Worker) -> None:
        proxied.append(ready.child.name)
        await asyncio.sleep(0.01)  # other threads get here meanwhile, if they can

    service = BehindProxies(tmp_path, Shape(), start_proxies)
    service.workers = [worker(tmp_path, "prefill-0", 7_001)]
    await asyncio.gather(*(asyncio.to_thread(service.publish) for _ in range(PUBLISHERS)))
    assert proxied == ["prefill-0"]


class _Unpublished(Deployment):
    """Its workers are processes that only sleep; publishing one fails."""

    def start_worker(self, role: str, flags: Sequence[str] = ()) -> Worker:
        child = Child(f"{role}-1", ("-c", "import time; time.sleep(600)"), self.folder)
        return Worker(role, child, self.folder / "announced.json", "127.0.0.1")

    def await_worker(self, worker: Worker) -> None:
        worker.port = 7_001

    def publish(self) -> None:
        raise OSError("no room for the discovery file")


def test_a_successor_that_cannot_be_published_does_not_run_on(tmp_path: Path) -> None:
    """No other process would use it, and none would replace it."""
    deployment = _Unpublished(tmp_path)
    lost = worker(tmp_path, "prefill-0", 7_000)
    deployment.workers = [lost]
    try:
        with pytest.raises(OSError, match="no room"):
            deployment.replace(lost)
        (successor,) = deployment.workers
        assert successor is not lost
        assert not successor.child.is_running()
    finally:
        deployment.stop()
