"""A deployment of a command's own: `baton up` as its child, in a run directory of its own, gone when the command ends.

So a command sees what users get: the same processes, links and refusals.
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
from baton_local.fleet.process_tree import descendants, is_alive
from baton_local.fleet.processes import ChildProcesses, Ended
from baton_local.fleet.record import RunRecord, read_record
from baton_local.fleet.run_dir import RunDir, base_directory, directory_name

T = TypeVar("T")

UP = "baton up"
POLL_S = 0.05
SETTLE_S = 5.0
STOP_S = 40.0
PAIRED_S = 30.0
"""A deployment is ready when a decode worker alone could answer. What is shown or measured waits for a pair."""
TOLD_S = 0.5
"""Until a worker's account of its links has reached the gateway too."""


class OwnDeploymentError(LocalError):
    """It did not start, did not do its work through both pools, or did not end."""


@dataclass(frozen=True, slots=True)
class OwnDeployment:
    """One that runs, with a linked pair of workers."""

    run: RunDir
    record: RunRecord
    ready_after_s: float

    def settled(self) -> Observation:
        """The processes' accounts once all workers are idle: counters may trail the answer by a moment."""

        def idle() -> Observation | None:
            seen = observe(read_record(self.run))
            return seen if is_settled([state for _, state in seen.workers]) else None

        try:
            return _awaited(idle, SETTLE_S, "")
        except OwnDeploymentError:
            return observe(read_record(self.run))


@contextmanager
def own_deployment(manifest: Path, up_arguments: Sequence[str], ready_s: float) -> Iterator[OwnDeployment]:
    """Start it, wait for a pair, stop it, and see that nothing is left. Raises LocalError; logs are kept then."""
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
            _awaited(lambda: is_paired(observe(read_record(run))) or None, PAIRED_S, "no pair of workers is linked")
            time.sleep(TOLD_S)
            yield OwnDeployment(run, record, ready_after_s)
            _stop(pid, processes, log)
    except LocalError as error:
        raise OwnDeploymentError(f"{error} (logs are kept in {directory})") from error
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    shutil.rmtree(directory)


def is_paired(seen: Observation) -> bool:
    """Whether the gateway is linked with every worker, and every prefill worker with a decode worker. Pure."""
    linked = all(seen.seen_by_gateway.links.get(process.address or "") == "live" for process, _ in seen.workers)
    prefill = [state for process, state in seen.workers if process.role == "prefill"]
    return linked and bool(prefill) and all(state is not None and state.transfer.links for state in prefill)


def is_settled(states: Sequence[ObservedWorker | None]) -> bool:
    """Whether every worker answers, is idle, and both ends of the transfer have counted the same bytes. Pure.

    Each worker publishes its counters a few times a second: the receiver's may be ahead of the sender's.
    """
    known = [state for state in states if state is not None]
    received = sum(state.transfer.bytes_received for state in known)
    is_idle = all(state.running + state.waiting == 0 for state in known)
    return len(known) == len(states) and is_idle and 0 < received <= sum(state.transfer.bytes_sent for state in known)


def check_moved(seen: Observation) -> None:
    """That KV went from one process to another. Pure; raises OwnDeploymentError when it did not."""
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
            said = last_line(log).removeprefix("baton: ")
            raise OwnDeploymentError(said or f"`baton up` ended with status {ended[0].status}")
        try:
            record = read_record(run)
        except NotRunningError:
            return None
        return record if record.ready and record.pid == pid else None

    return _awaited(ready, limit_s, "the deployment is not ready")


def _ended(processes: ChildProcesses, log: Path, limit_s: float) -> Ended:
    def ended() -> Ended | None:
        return next(iter(processes.poll()), None)

    return _awaited(ended, limit_s, f"`baton up` did not stop: {last_line(log)}")


def _awaited(look: Callable[[], T | None], limit_s: float, failure: str) -> T:
    give_up_s = time.monotonic() + limit_s
    while (found := look()) is None:
        if time.monotonic() >= give_up_s:
            raise OwnDeploymentError(f"{failure} after {limit_s:g} s")
        time.sleep(POLL_S)
    return found
