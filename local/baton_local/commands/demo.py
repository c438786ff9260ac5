"""`baton demo`: bring a deployment up, ask it one question, show what happened, take it down, leave nothing.

It runs `baton up` as its own child, so that what is shown is what users get. It fails when the KV cache did not move
from one process to another, or when a process is left at the end.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from baton_control.spec.manifest import read_manifest
from baton_local.client import Answer, ask, chat
from baton_local.commands.ask import show
from baton_local.errors import LocalError, NotRunningError
from baton_local.fleet.client_keys import key_for
from baton_local.fleet.log_tail import last_line
from baton_local.fleet.observation import Observation, ObservedWorker, observe
from baton_local.fleet.process_tree import descendants, is_alive
from baton_local.fleet.processes import ChildProcesses, Ended
from baton_local.fleet.record import RunRecord, read_record
from baton_local.fleet.run_dir import RunDir, base_directory, directory_name
from baton_local.text_table import milliseconds, table

T = TypeVar("T")

UP = "baton up"
POLL_S = 0.05
SETTLE_S = 5.0
STOP_S = 40.0
PAIRED_S = 30.0
"""A deployment is ready when a decode worker alone could answer. The demonstration waits for a pair."""
TOLD_S = 0.5
"""Until a worker's account of its links has reached the gateway too."""


class DemoError(LocalError):
    """The demonstration did not show what it should."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    manifest: Path
    up_arguments: tuple[str, ...]
    """Passed to `baton up` as they are."""
    question: str
    max_tokens: int
    ready_s: float


def run_demo(options: DemoOptions) -> int:
    """The whole demonstration. Raises LocalError or OperatorError when a part of it fails."""
    metadata = read_manifest(options.manifest).metadata
    directory = Path(tempfile.mkdtemp(prefix="baton-demo-"))
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(directory)}
    run = RunDir(base_directory(environment) / directory_name(metadata.namespace, metadata.name))
    try:
        with ChildProcesses() as processes:
            _show(run, processes, environment, directory / "up.log", options)
    except LocalError as error:
        raise DemoError(f"{error} (logs are kept in {directory})") from error
    print("stopped; no process is left")
    shutil.rmtree(directory)
    return 0


def _show(run: RunDir, processes: ChildProcesses, environment: dict[str, str], log: Path, options: DemoOptions) -> None:
    started_s = time.monotonic()
    command = (sys.executable, "-m", "baton_local", "up", "-f", str(options.manifest), *options.up_arguments)
    pid = processes.start(UP, command, environment, log)
    record = _ready(run, pid, processes, log, options.ready_s)
    print(f"ready {record.endpoint} after {time.monotonic() - started_s:.1f} s\n", flush=True)
    _awaited(lambda: True if is_paired(observe(read_record(run))) else None, PAIRED_S, "no pair of workers is linked")
    time.sleep(TOLD_S)
    answer = _ask(record, options)
    seen = _settled(run)
    print(f"\n\n{report(seen, answer)}\n", flush=True)
    started = descendants(pid)
    processes.signal(UP, signal.SIGTERM)
    ended = _ended(processes, log, STOP_S)
    left = [str(process.pid) for process in started if is_alive(process)]
    if ended.status != 0:
        raise DemoError(f"`baton up` ended with status {ended.status}")
    if left:
        raise DemoError(f"processes were left behind: {', '.join(left)}")
    check_moved(seen)


def report(seen: Observation, answer: Answer) -> str:
    """The table of the demonstration. Pure."""
    rows: list[tuple[object, ...]] = []
    if seen.gateway is not None:
        rows.append(("gateway", str(seen.gateway.pid), seen.gateway.address, None, None, None))
    for post, state in seen.workers:
        if state is None:
            rows.append((post.role, str(post.pid), post.address, None, None, "does not answer"))
            continue
        sent, received = state.transfer.bytes_sent, state.transfer.bytes_received
        moved = received if post.role == "decode" else sent
        direction = "received" if post.role == "decode" else "sent"
        rows.append((post.role, str(post.pid), post.address, _blocks(moved, state.block_bytes), moved, direction))
    header = ("PROCESS", "PID", "ADDRESS", "KV BLOCKS", "KV BYTES", "")
    transports = {state.transfer.transport for _, state in seen.workers if state and state.transfer.transport}
    facts = (
        f"transport {', '.join(sorted(transports)) or '-'}",
        f"TTFT {milliseconds(answer.ttft_s)}",
        f"TPOT {milliseconds(answer.tpot_s if answer.tokens > 1 else None)}",
        f"{answer.tokens} tokens",
    )
    return f"{table(header, rows)}\n\n{'   '.join(facts)}"


def is_paired(seen: Observation) -> bool:
    """Whether the gateway is linked with every worker, and every prefill worker with a decode worker. Pure."""
    linked = all(seen.seen_by_gateway.links.get(post.address or "") == "live" for post, _ in seen.workers)
    prefill = [state for post, state in seen.workers if post.role == "prefill"]
    return linked and bool(prefill) and all(state is not None and state.transfer.links for state in prefill)


def check_moved(seen: Observation) -> None:
    """That KV went from one process to another. Pure; raises DemoError when it did not."""
    sent = {post.pid: s.transfer.bytes_sent for post, s in seen.workers if s and s.transfer.bytes_sent}
    got = {post.pid: s.transfer.bytes_received for post, s in seen.workers if s and s.transfer.bytes_received}
    if not sent or not got:
        raise DemoError("no KV moved from a prefill worker to a decode worker")
    if set(sent) & set(got):
        raise DemoError("KV did not leave its process")
    if sum(sent.values()) < sum(got.values()):
        raise DemoError(f"{sum(got.values())} bytes of KV were received, but {sum(sent.values())} sent")


def is_settled(states: Sequence[ObservedWorker | None]) -> bool:
    """Whether every worker answers, is idle, and both ends of the transfer have counted the same bytes. Pure.

    Each worker publishes its counters a few times a second: the receiver's may be ahead of the sender's.
    """
    known = [state for state in states if state is not None]
    received = sum(state.transfer.bytes_received for state in known)
    is_idle = all(state.running + state.waiting == 0 for state in known)
    return len(known) == len(states) and is_idle and 0 < received <= sum(state.transfer.bytes_sent for state in known)


def _blocks(moved: int, block_bytes: int) -> int | None:
    """Whole blocks in so many bytes."""
    return moved // block_bytes if block_bytes else None


def _ready(run: RunDir, pid: int, processes: ChildProcesses, log: Path, limit_s: float) -> RunRecord:
    def ready() -> RunRecord | None:
        ended = processes.poll()
        if ended:
            raise DemoError(last_line(log).removeprefix("baton: ") or f"`baton up` ended with status {ended[0].status}")
        try:
            record = read_record(run)
        except NotRunningError:
            return None
        return record if record.ready and record.pid == pid else None

    return _awaited(ready, limit_s, "the deployment is not ready")


def _ask(record: RunRecord, options: DemoOptions) -> Answer:
    print(f"> {options.question}\n", flush=True)
    question = chat(record.served_name, options.question, max_tokens=options.max_tokens, temperature=0)
    answer = ask(record.endpoint, question, show, key_for(record, os.environ))
    if not any(answer.texts.values()):
        raise DemoError("the answer is empty")
    return answer


def _settled(run: RunDir) -> Observation:
    """The processes' accounts once all workers are idle: counters may trail the answer by a moment."""

    def idle() -> Observation | None:
        seen = observe(read_record(run))
        return seen if is_settled([state for _, state in seen.workers]) else None

    try:
        return _awaited(idle, SETTLE_S, "")
    except DemoError:
        return observe(read_record(run))


def _ended(processes: ChildProcesses, log: Path, limit_s: float) -> Ended:
    def ended() -> Ended | None:
        return next(iter(processes.poll()), None)

    return _awaited(ended, limit_s, f"`baton up` did not stop: {last_line(log)}")


def _awaited(look: Callable[[], T | None], limit_s: float, failure: str) -> T:
    give_up_s = time.monotonic() + limit_s
    while (found := look()) is None:
        if time.monotonic() >= give_up_s:
            raise DemoError(f"{failure} after {limit_s:g} s")
        time.sleep(POLL_S)
    return found
