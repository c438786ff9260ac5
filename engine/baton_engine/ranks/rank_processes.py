"""The rank processes of one worker: a thread starts them, reads their reports, and ends all when one of them is lost.

The kernel ends the ranks with the thread that started them, and so with the worker's process, however that ends. A lost
rank cannot be replaced: the others have computed without it, and their caches are worth nothing. The worker ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

import msgspec

from baton_engine.collectives.collective import RankLostError
from baton_engine.collectives.event_counter import EventCounter
from baton_engine.collectives.shared_device_memory import DeviceMemoryHandle
from baton_engine.collectives.shared_memory_collective import CollectiveParts
from baton_engine.memory.shared_memory import SharedMemory
from baton_engine.ranks.byte_ring import RingReader, RingWriter
from baton_engine.ranks.rank_ends import RankEnds
from baton_engine.ranks.rank_frames import (
    FromRank,
    LayersWritten,
    LoadShare,
    MakeRunner,
    RankCrashed,
    RankFrame,
    RankReady,
    RankRefused,
    ShareLoaded,
    StepDone,
    decode_from_rank,
    encode_frame,
)
from baton_engine.ranks.rank_reports import MISSED_TICKS, Heartbeats, RankReports
from baton_engine.ranks.stage_links import create_links
from baton_engine.running.layer_notices import LayerListener
from baton_engine.scheduling.step_plan import StepResult
from baton_wire.models.errors import ModelError
from baton_wire.stop_signals import DELIBERATE, WITHOUT_MEANING

log = logging.getLogger(__name__)

TICK_S: Final = 0.25
Answer = TypeVar("Answer", ShareLoaded, RankReady)

START_S: Final = 3_600.0
"""Longest load of a share, from a slow volume too."""
STEP_S: Final = 600.0
"""Longest step. Whether a worker makes progress is asked far sooner, by its liveness probe."""
KILL_S: Final = 30.0
"""The longest wait for the end of a killed rank. It frees its memory in its own time slices: some 0.1 s of work, which
take a process of low priority many seconds on a machine that is busy."""

WITHOUT_MULTICAST: Final = {
    "NCCL_NVLS_ENABLE": "0",
    "NVSHMEM_DISABLE_NVLS": "1",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
}
"""Environment of ranks: no library in them uses NVLink multicast, which can put a host's GPUs out of service."""

NOT_FOR_RANKS: Final = (*DELIBERATE, *WITHOUT_MEANING, signal.SIGHUP)
"""Signals that a whole group of processes gets: a worker that drains needs its ranks, from their first instant on."""


@dataclass(slots=True)
class _Process:
    """A rank's process with the worker's ends of its rings."""

    rank: int
    ends: RankEnds
    popen: subprocess.Popen[bytes]
    pidfd: int
    reader: RingReader

    @property
    def name(self) -> str:
        return f"rank {self.rank} (process {self.popen.pid})"


class RankProcesses:
    """Implements `Ranks`. One thread uses it; its own thread starts, reads and watches the processes."""

    def __init__(self, ranks: int, *, are_stages: bool = False) -> None:
        """`are_stages`: ranks are the stages of a pipeline, and have the memory of one KV pool together."""
        self.ranks, self._are_stages = ranks, are_stages
        self._ends = [RankEnds.create(0)]
        self._ends += [RankEnds.create(rank, self._ends[0].pool if are_stages else None) for rank in range(1, ranks)]
        self._links = create_links(ranks) if are_stages else []
        self._writers = [RingWriter(ends.orders) for ends in self._ends]
        self._sums = CollectiveParts.create(ranks)
        self._are_pools_made = False
        self._stop = EventCounter.create()
        self._changed = threading.Condition()
        """Guards everything below."""
        self._answers: dict[int, FromRank] = {}
        """Answers to `load` or `make_runners`, by rank."""
        self._reports = RankReports(ranks, are_stages=are_stages)
        self._listener: LayerListener = lambda step, layers: None
        self.pids: list[int] = []
        """Process ids in the order of the ranks, once they are started."""
        self._on_lost: Callable[[RankLostError], None] = lambda error: None
        self._error: RankLostError | ModelError | MemoryError | None = None
        self._beats = Heartbeats(ranks)
        self._thread = threading.Thread(target=self._supervise, name="ranks", daemon=True)

    @classmethod
    def start(cls, ranks: int, *, are_stages: bool = False) -> Self:
        """Start the processes. Raises MemoryError."""
        processes = cls(ranks, are_stages=are_stages)
        processes._thread.start()
        return processes

    def load(self, order: LoadShare) -> list[ShareLoaded]:
        """Let every rank load its share. Raises ModelError and MemoryError as loading does, and RankLostError."""
        return self._ask(order, ShareLoaded)

    def make_runners(self, order: MakeRunner, pool_bytes: int) -> list[SharedMemory]:
        """Make the memory of each rank's pool, of `pool_bytes`, and let every rank make its runner over it. Returns the
        memories: one alone for stages. Raises MemoryError and RankLostError."""
        self._are_pools_made = True
        owners = self._ends[:1] if self._are_stages else self._ends
        memories = [SharedMemory.grow(ends.pool, pool_bytes) for ends in owners]
        for ends in self._ends[len(owners) :]:
            os.close(ends.pool)
        self._ask(order, RankReady)
        for memory in memories:
            memory.close_descriptor()
        return memories

    def make_runners_on_gpus(self, order: MakeRunner) -> list[DeviceMemoryHandle]:
        """Let every rank make its pool and its runner on its GPU. Returns the handles of the pools' memories. Raises
        MemoryError and RankLostError."""
        return [DeviceMemoryHandle.parse(ready.pool or b"") for ready in self._ask(order, RankReady)]

    def send(self, frame: RankFrame) -> None:
        self._check()
        data = encode_frame(frame)
        for writer in self._writers:
            writer.send(data, STEP_S, self._check)

    def is_done(self, step: int) -> bool:
        with self._changed:
            self._check()
            return self._reports.is_done(step)

    def await_result(self, step: int) -> StepResult:
        with self._changed:
            is_over = self._changed.wait_for(lambda: self._error is not None or self._reports.is_done(step), STEP_S)
            self._check()
            if not is_over:
                raise RankLostError(f"step {step} was not over after {STEP_S:g} s")
            return self._reports.take(step)

    def watch_layers(self, listener: LayerListener) -> None:
        self._listener = listener

    def watch_loss(self, on_lost: Callable[[RankLostError], None]) -> None:
        """Call `on_lost` once when a rank is lost, from another thread, or now if it has happened."""
        with self._changed:
            self._on_lost = on_lost
            error = self._error
        if isinstance(error, RankLostError):
            on_lost(error)

    def close(self) -> None:
        """Kill the processes, which have nothing to save, and wait until they are gone. Nothing uses the ranks any
        more."""
        with self._changed:
            self._on_lost = lambda error: None
        self._stop.add()
        self._thread.join(KILL_S * (self.ranks + 1))
        if self._thread.is_alive():
            log.warning("ranks did not end within %g s", KILL_S * (self.ranks + 1))
            return
        for ends in self._ends:
            ends.close()
            if not self._are_pools_made:
                os.close(ends.pool)
        for link in self._links:
            link.close()
        self._sums.close()
        self._stop.close()

    def _ask(self, order: RankFrame, kind: type[Answer]) -> list[Answer]:
        with self._changed:
            self._answers.clear()
        self.send(order)
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or len(self._answers) == self.ranks, START_S)
            self._check()
            answers = [answer for _, answer in sorted(self._answers.items()) if isinstance(answer, kind)]
        if len(answers) < self.ranks:
            raise RankLostError(f"{self.ranks - len(answers)} ranks did not start within {START_S:g} s")
        return answers

    def _check(self) -> None:
        """Raises the error by which the ranks ended."""
        if self._error is not None:
            raise self._error

    # The supervising thread -------------------------------------------------------------------------------------------

    def _supervise(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_RANKS)  # ranks inherit this thread's mask
        processes: list[_Process] = []
        try:
            for rank, ends in enumerate(self._ends):
                processes.append(self._start(rank, ends))
            self.pids = [process.popen.pid for process in processes]
            self._watch(processes)
        except (RankLostError, ModelError, MemoryError, OSError) as error:
            lost = RankLostError(f"the ranks cannot be started: {error}") if isinstance(error, OSError) else error
            self._end(processes, lost)
        except Exception as error:  # the outermost loop of this thread
            log.exception("the ranks are no longer watched")
            self._end(processes, RankLostError(f"the ranks are no longer watched: {type(error).__name__}: {error}"))
        else:
            self._end(processes, RankLostError("the ranks were ended"))

    def _start(self, rank: int, ends: RankEnds) -> _Process:
        links = [descriptor for link in self._links for descriptor in link.descriptors]
        descriptors = (*ends.descriptors, *self._sums.descriptors, *links)
        argv = [sys.executable, "-m", "baton_engine.ranks.rank_main"]
        argv += ["--rank", str(rank), "--ranks", str(self.ranks), "--parent", str(os.getpid())]
        argv += ["--descriptors", ",".join(map(str, descriptors)), *(["--stages"] if self._are_stages else [])]
        environment = os.environ | WITHOUT_MULTICAST
        popen = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=descriptors, env=environment)
        return _Process(rank, ends, popen, os.pidfd_open(popen.pid), RingReader(ends.reports))

    def _watch(self, processes: Sequence[_Process]) -> None:
        """Read reports until `close`. Raises what the ranks are ended for."""
        poll = select.poll()
        poll.register(self._stop.descriptor, select.POLLIN)
        for process in processes:
            poll.register(process.reader.descriptor, select.POLLIN)
            poll.register(process.pidfd, select.POLLIN)
        ticks = Ticks(TICK_S)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll(ticks.left_s() * 1_000)}
            if self._stop.descriptor in ready:
                return
            for process in processes:
                if process.reader.descriptor in ready or process.pidfd in ready:
                    self._read(process)
                if process.pidfd in ready:
                    raise RankLostError(f"{process.name} {_describe_end(process.popen.wait())}")
            if ticks.is_due():
                self._look_for_beats(processes)

    def _look_for_beats(self, processes: Sequence[_Process]) -> None:
        for process in processes:
            if process.ends.beats.take():
                self._beats.beat(process.rank)
        silent = self._beats.tick()
        if silent is not None:
            pid = processes[silent].popen.pid
            state = "is stopped" if _is_stopped(pid) else "does not run"
            raise RankLostError(f"{processes[silent].name} {state}: no sign of life for {MISSED_TICKS * TICK_S:g} s")

    def _read(self, process: _Process) -> None:
        """Take all reports of a rank that have arrived."""
        while (data := process.reader.take()) is not None:
            try:
                frame = decode_from_rank(data)
            except msgspec.DecodeError as error:
                raise RankLostError(f"{process.name} sent what is no frame: {error}") from error
            self._take(process, frame)

    def _take(self, process: _Process, frame: FromRank) -> None:
        match frame:
            case RankRefused(detail, is_memory):
                raise MemoryError(f"rank {process.rank}: {detail}") if is_memory else ModelError(detail)
            case RankCrashed(detail):
                raise RankLostError(f"{process.name} failed: {detail}")
            case LayersWritten():
                with self._changed:
                    written = self._reports.add_layers(process.rank, frame)
                if written is not None:
                    self._listener(frame.step, written)
            case StepDone():
                with self._changed:
                    if self._reports.add_done(process.rank, frame):
                        self._changed.notify_all()
            case ShareLoaded() | RankReady():
                with self._changed:
                    self._answers[process.rank] = frame
                    self._changed.notify_all()

    def _end(self, processes: Sequence[_Process], error: RankLostError | ModelError | MemoryError) -> None:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.popen.send_signal(signal.SIGKILL)
        with self._changed:
            self._error = error
            self._changed.notify_all()
            on_lost = self._on_lost
        if isinstance(error, RankLostError):
            on_lost(error)
        for process in processes:
            try:
                process.popen.wait(KILL_S)
            except subprocess.TimeoutExpired:
                log.warning("%s has not ended %g s after it was killed", process.name, KILL_S)
            os.close(process.pidfd)


class Ticks:
    """Regular ticks of a thread that may be late: what it missed meanwhile is one tick."""

    def __init__(self, interval_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s, self._clock = interval_s, clock
        self._next_s = clock() + interval_s

    def left_s(self) -> float:
        return max(0.0, self._next_s - self._clock())

    def is_due(self) -> bool:
        """True once for each tick."""
        if self._clock() < self._next_s:
            return False
        self._next_s = self._clock() + self._interval_s
        return True


def _describe_end(status: int) -> str:
    """How a process ended, by its exit status as `subprocess` has it."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = "unknown"
    hint = "; the machine may be out of memory" if -status == signal.SIGKILL else ""
    return f"was ended by signal {-status} ({name}){hint}"


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")
