"""A temporary deployment of a command: `baton up` as its child, in a run directory of its own, gone when it ends.

So the command uses the same processes, links and refusals as a user's deployment.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from baton_control.spec.manifest import read_manifest
from baton_local.errors import LocalError, NotRunningError
from baton_local.fleet.log_tail import last_line
from baton_local.fleet.observation import Observation, ObservedWorker, observe
from baton_local.fleet.processes import ChildProcesses, Ended, descendants, is_alive
from baton_local.fleet.record import RunRecord, read_record
from baton_local.fleet.run_dir import RunDir, base_directory, directory_name

T = TypeVar("T")

UP = "baton up"
POLL_S = 0.05
SETTLE_S = 5.0
STOP_S = 40.0
PAIRED_S = 30.0
"""Limit for a linked pair of workers: a deployment is ready when a decode worker alone could answer, and commands need
both."""
LINK_REPORT_S = 0.5
"""Time for a worker's report of its links to reach the gateway too."""


class OwnDeploymentError(LocalError):
    """The deployment did not start, did not use both pools, or did not end."""


@dataclass(frozen=True, slots=True)
class OwnDeployment:
    """A running deployment with a linked pair of workers."""

    run: RunDir
    record: RunRecord
    ready_after_s: float

    def settled(self) -> Observation:
        """An observation once all workers are idle, because counters may trail the answer by a moment."""

        def idle() -> Observation | None:
            seen = observe(read_record(self.run))
            return seen if is_settled([state for _, state in seen.workers]) else None

        try:
            return _await(idle, SETTLE_S, "")
        except OwnDeploymentError:
            return observe(read_record(self.run))


@contextmanager
def own_deployment(manifest: Path, up_arguments: Sequence[str], ready_s: float) -> Iterator[OwnDeployment]:
    """Start a deployment, wait for a linked pair, stop it at the end, and check that no process is left. Raises
    LocalError, and keeps the logs then."""
    metadata = read_manifest(manifest).metadata
    directory = Path(tempfile.mkdtemp(prefix="baton-own-"))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
    run = RunDir(base_directory(environment) / directory_name(metadata.namespace, metadata.name))
    command = (sys.executable, "-m", "baton_local", "up", "-f", str(manifest), *up_arguments)
    log = directory / "up.log"
    try:
        with ChildProcesses() as processes:
            started_s = time.monotonic()
            pid = processes.start(UP, command, environment, log)
            record = _ready(run, pid, processes, log, ready_s)
            ready_after_s = time.monotonic() - started_s
            _await(lambda: is_paired(observe(read_record(run))) or None, PAIRED_S, "no pair of workers is linked")
            time.sleep(LINK_REPORT_S)
            yield OwnDeployment(run, record, ready_after_s)
            _stop(pid, processes, log)
    except LocalError as error:
        raise OwnDeploymentError(f"{error} (logs are kept in {directory})") from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory)


def is_paired(seen: Observation) -> bool:
    """True when the gateway is linked to every worker, and every prefill worker to a decode worker. Pure."""
    linked = all(seen.seen_by_gateway.links.get(process.address or "") == "live" for process, _ in seen.workers)
    prefill = [state for process, state in seen.workers if process.role == "prefill"]
    return linked and bool(prefill) and all(state is not None and state.transfer.links for state in prefill)


def is_settled(states: Sequence[ObservedWorker | None]) -> bool:
    """True when every worker answers and is idle, and both ends of the transfers have counted the same bytes. Pure.

    Each worker publishes its counters a few times a second: the receiver's may be ahead of the sender's.
    """
    known = [state for state in states if state is not None]
    received = sum(state.transfer.bytes_received for state in known)
    is_idle = all(state.running + state.waiting == 0 for state in known)
    return len(known) == len(states) and is_idle and 0 < received <= sum(state.transfer.bytes_sent for state in known)


def check_moved(seen: Observation) -> None:
    """Check that KV went from one process to another. Pure. Raises OwnDeploymentError."""
    sent = {process.pid: s.transfer.bytes_sent for process, s in seen.workers if s and s.transfer.bytes_sent}
    got = {process.pid: s.transfer.bytes_received for process, s in seen.workers if s and s.transfer.bytes_received}
    if not sent or not got:
        raise OwnDeploymentError("no KV moved from a prefill worker to a decode worker")
    if set(sent) & set(got):
        raise OwnDeploymentError("KV did not leave its process")
    if sum(sent.values()) < sum(got.values()):
        raise OwnDeploymentError(f"{sum(got.values())} bytes of KV were received, but {sum(sent.values())} sent")


def _stop(pid: int, processes: ChildProcesses, log: Path) -> None:
    started = descendants(pid)
    processes.signal(UP, signal.SIGTERM)
    ended = _ended(processes, log, STOP_S)
    left = [str(process.pid) for process in started if is_alive(process)]
    if ended.status != 0:
        raise OwnDeploymentError(f"`baton up` ended with status {ended.status}")
    if left:
        raise OwnDeploymentError(f"processes were left behind: {', '.join(left)}")


def _ready(run: RunDir, pid: int, processes: ChildProcesses, log: Path, limit_s: float) -> RunRecord:
    def ready() -> RunRecord | None:
        if ended := processes.poll():
            line = last_line(log).removeprefix("baton: ")
            raise OwnDeploymentError(line or f"`baton up` ended with status {ended[0].status}")
        try:
            record = read_record(run)
        except NotRunningError:
            return None
        return record if record.ready and record.pid == pid else None

    return _await(ready, limit_s, "the deployment is not ready")


def _ended(processes: ChildProcesses, log: Path, limit_s: float) -> Ended:
    def ended() -> Ended | None:
        return next(iter(processes.poll()), None)

    return _await(ended, limit_s, f"`baton up` did not stop: {last_line(log)}")


def _await(poll: Callable[[], T | None], limit_s: float, failure: str) -> T:
    give_up_s = time.monotonic() + limit_s
    while (result := poll()) is None:
        if time.monotonic() >= give_up_s:
            raise OwnDeploymentError(f"{failure} after {limit_s:g} s")
        time.sleep(POLL_S)
    return result
