"""A whole service for tests, campaigns and benches: workers and gateway as separate processes, started directly.

What `baton up` does is tested on its own; this builder gives a test control over each process's flags.
"""

from __future__ import annotations

import json
import signal
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from baton_testing.engine import tiny_llama
from baton_testing.processes.child_process import Child, Starts, get_json, get_status, get_text, wait_for
from baton_wire.keys import write_new_key

START_S = 120.0
"""Longest time for one process to become ready: on a busy machine importing torch takes most of it."""

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment to start, and the flags that differ from the workers' defaults."""

    prefill: int = 1
    decode: int = 1
    gateway_processes: int = 1
    model: str | Path = tiny_llama.FOLDER
    served_name: str = "tiny"
    prefill_flags: tuple[str, ...] = ()
    decode_flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ("--dtype", "float32", "--kv-cache-bytes", str(24 * MIB))
    gateway_flags: tuple[str, ...] = ()
    max_queue_s: float | None = 60.0
    """Long by default: answers are tested, however slow the machine is. None: the gateway's own default."""
    flips: bool = False
    """Workers of both roles are flexible ones."""
    environment: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Further flags of a role's processes: `prefill`, `decode` and `gateway`."""


@dataclass(slots=True)
class Worker:
    """One worker process and what it announced."""

    role: str
    child: Child
    announce: Path
    host: str
    port: int = 0
    """0 until the worker has announced itself."""
    pair_port: int | None = None
    baseline_free: int = field(default=0)
    """Free blocks when it had served nothing yet."""

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def state(self) -> Any:
        """`/state` of the worker, or None while it does not answer."""
        return get_json(f"{self.base_url}/state")

    def metrics(self) -> str:
        return get_text(f"{self.base_url}/metrics")


class Deployment:
    """Starts everything in `start`, owns it, and leaves nothing over after `stop`."""

    def __init__(self, folder: Path, shape: Shape = Shape(), starts: Starts | None = None) -> None:
        """`starts`: of `Child`."""
        self.folder = folder
        self._starts = starts
        self.shape = shape
        self.keys = folder / "keys"
        self.workers: list[Worker] = []
        self.gateway: Child
        self._other_gateways: list[Child] = []
        self.port = 0
        self.admin_port: int | None = None
        self.other_admin_ports: list[int] = []
        """Those of gateways that were started besides the first."""
        self._started: Counter[str] = Counter()
        self._publishing = threading.RLock()
        """Workers are replaced in threads, several at a time."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.keys.mkdir(parents=True)
        write_new_key(self.keys, "test")
        for role, count in (("decode", self.shape.decode), ("prefill", self.shape.prefill)):
            for _ in range(count):
                self.workers.append(self.start_worker(role))
        for worker in self.workers:
            self.await_worker(worker)
        self.publish()
        self._start_gateway()
        self.await_routable()

    def start_worker(self, role: str, flags: Sequence[str] = ()) -> Worker:
        """Start one worker; it joins once `await_worker` and `publish` were called."""
        name = f"{role}-{self._started[role]}"
        self._started[role] += 1
        announce, host = self.folder / f"{name}.json", self.host_of(name)
        extra = self.shape.prefill_flags if role == "prefill" else self.shape.decode_flags
        flips = self.shape.flips
        argv = [
            *("-m", f"baton_{'flexible' if flips else role}_worker", *(("--role", role) if flips else ())),
            *("--model", str(self.shape.model), "--served-name", self.shape.served_name),
            *("--listen", f"{host}:{self.held_port()}", "--keys", str(self.keys), "--announce", str(announce)),
            *(self._decode_discovery() if flips or role == "prefill" else ()),
            *(("--prefill-discovery", f"file:{self._discovery_file('prefill')}") if flips else ()),
            *(("--pair-listen", f"{host}:{self.held_port()}") if flips or role == "decode" else ()),
            *(*self.shape.worker_flags, *extra, *flags),
        ]
        return Worker(role, self.launch(name, argv, self.shape.environment.get(role)), announce, host)

    def host_of(self, name: str) -> str:
        """Where a worker listens."""
        return "127.0.0.1"

    def dialled_host(self, worker: Worker) -> str:
        """Where peers dial a worker."""
        return worker.host

    def held_port(self) -> int:
        """Where one of a worker's listeners is to be; 0: anywhere."""
        return 0

    def launch(self, name: str, argv: Sequence[str], extra: Mapping[str, str] | None) -> Child:
        """Start one process, the gateway's too. What it shall find in its environment may count for its imports."""
        return Child(name, argv, self.folder, extra, starts=None if extra else self._starts)

    def await_worker(self, worker: Worker) -> None:
        announced = worker.child.await_file(worker.announce, START_S)
        worker.pair_port = announced["pair_port"]
        worker.port = announced["port"]  # last: other threads publish the worker from now on
        state = wait_for(worker.state, f"{worker.child.name} to answer /state", START_S)
        worker.baseline_free = state["blocks_free"]

    def publish(self) -> None:
        """Write the workers that have announced themselves into the discovery files, each at once."""
        with self._publishing:
            for role in ("prefill", "decode"):
                target = self._discovery_file(role)
                draft = target.with_suffix(".draft")
                draft.write_text(json.dumps(self.discovery_rows(role)))
                draft.replace(target)

    def discovery_rows(self, role: str) -> list[dict[str, str | int]]:
        """Rows of a role's discovery file."""
        return [
            {"host": self.dialled_host(w), "port": w.port, **({"pair_port": w.pair_port} if w.pair_port else {})}
            for w in self.workers
            if w.role == role and w.port
        ]

    def of_role(self, role: str) -> list[Worker]:
        return [worker for worker in self.workers if worker.role == role]

    def replace(self, worker: Worker) -> Worker:
        """Start a worker in the place of one that has ended or is to end, and publish it. A successor that cannot be
        published is stopped.
        """
        worker.child.stop()
        successor = self.start_worker(worker.role)
        self.workers[self.workers.index(worker)] = successor
        try:
            self.await_worker(successor)
            self.publish()
        except BaseException:
            successor.child.stop()  # it would run unpublished
            raise
        return successor

    def await_routable(self, timeout_s: float = START_S) -> None:
        url = f"{self.base_url}/health/routable"
        wait_for(lambda: get_status(url) == 200 or None, "the gateway to be routable", timeout_s)

    def occupied(self) -> dict[str, int]:
        """Blocks that each worker holds beyond its baseline (cached blocks count as free), by worker name."""
        return {w.child.name: w.baseline_free - (w.state() or {"blocks_free": 0})["blocks_free"] for w in self.workers}

    def await_idle(self, timeout_s: float = 20.0) -> None:
        """Every worker is back at its baseline, with nothing running or waiting. What is left over would be held for
        30 s and more, until its deadline."""

        def probe() -> bool | None:
            states = [(worker, worker.state()) for worker in self.workers]
            idle = all(
                s is not None and s["blocks_free"] == w.baseline_free and not s["running"] and not s["waiting"]
                for w, s in states
            )
            return idle or None

        wait_for(probe, "all blocks to be free again", timeout_s)

    def stop(self) -> None:
        children = [worker.child for worker in self.workers]
        children += [self.gateway] if hasattr(self, "gateway") else []
        children += self._other_gateways
        for child in children:
            child.family()
            child.send(signal.SIGTERM)
        for child in children:
            child.stop()

    def _start_gateway(self) -> None:
        self.gateway, announced = self._launch_gateway("gateway", self.shape.gateway_flags)
        self.port = announced["port"]
        self.admin_port = announced.get("admin_port")

    def start_gateway(self, name: str, flags: Sequence[str]) -> str:
        """Start another gateway of the same workers, and return its address."""
        child, announced = self._launch_gateway(name, flags)
        self._other_gateways.append(child)
        if (admin_port := announced.get("admin_port")) is not None:
            self.other_admin_ports.append(admin_port)
        base_url = f"http://127.0.0.1:{announced['port']}"
        wait_for(lambda: get_status(f"{base_url}/health/routable") == 200 or None, f"{name} to be routable", START_S)
        return base_url

    def stop_other_gateways(self) -> None:
        """Stop the gateways that `start_gateway` started."""
        for child in self._other_gateways:
            child.stop()
        self._other_gateways.clear()
        self.other_admin_ports.clear()

    def _launch_gateway(self, name: str, flags: Sequence[str]) -> tuple[Child, Any]:
        announce = self.folder / f"{name}.json"
        announce.unlink(missing_ok=True)
        argv = [
            *("-m", "baton_gateway", "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"),
            *("--keys", str(self.keys), "--announce", str(announce)),
            *("--prefill-discovery", f"file:{self._discovery_file('prefill')}"),
            *("--decode-discovery", f"file:{self._discovery_file('decode')}"),
            *("--processes", str(self.shape.gateway_processes)),
            *(() if self.shape.max_queue_s is None else (f"--max-queue-s={self.shape.max_queue_s:g}",)),
            *flags,
        ]
        child = self.launch(name, argv, self.shape.environment.get("gateway"))
        return child, child.await_file(announce, START_S)

    def _discovery_file(self, role: str) -> Path:
        return self.folder / f"{role}-workers.json"

    def _decode_discovery(self) -> tuple[str, str]:
        return ("--decode-discovery", f"file:{self._discovery_file('decode')}")
