"""Ranks that die, stop or fail: all end together within seconds, by name, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from baton_engine.collectives.collective import RankLostError
from baton_engine.ranks.rank_frames import LoadShare
from baton_engine.ranks.rank_processes import RankProcesses
from baton_engine.scheduling.step_plan import BlockUpdate, OpenSlot, PrefillChunk, StepPlan
from baton_testing.engine.model_steps import GREEDY
from baton_testing.engine.rank_group import RankGroup, rank_group
from baton_testing.engine.tiny_llama import FOLDER

RANKS = 2
PROMPT = tuple(range(5, 50))
WAIT_S = 60.0
"""Bound of waits that end far sooner, on a machine that is busy."""


def begin(slot: int = 0) -> StepPlan:
    table = tuple(BlockUpdate(slot, index, index) for index in range(128))
    opened = OpenSlot(slot, GREEDY, 0, PROMPT, (), 0, None)
    return StepPlan(1, opens=(opened,), blocks=table, prefill=(PrefillChunk(slot, 0, PROMPT, (slot,)),))


def are_gone(pids: list[int]) -> bool:
    return not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def until_lost(group: RankGroup) -> RankLostError:
    end_s = time.monotonic() + WAIT_S
    while not group.losses and time.monotonic() < end_s:
        time.sleep(0.01)
    (loss,) = group.losses
    return loss


@pytest.mark.parametrize(
    ("rank", "number", "cause"),
    [
        (0, signal.SIGKILL, r"was ended by signal 9 \(SIGKILL\)"),
        (1, signal.SIGSTOP, r"is stopped: no sign of life for 2 s"),
        (1, signal.SIGSEGV, r"was ended by signal 11 \(SIGSEGV\)"),
    ],
)
def test_a_rank_that_dies_or_stops_ends_all_by_name(rank: int, number: signal.Signals, cause: str) -> None:
    with rank_group(RANKS) as group:
        runner = group.runner()
        runner.execute(begin())
        pids = group.pids
        os.kill(pids[rank], number)
        runner.launch(StepPlan(2, decode=(0,)))
        with pytest.raises(RankLostError, match=f"^rank {rank} "):
            runner.collect()
        loss = until_lost(group)
        with pytest.raises(RankLostError, match=rf"^rank {rank} \(process {pids[rank]}\) {cause}"):
            raise loss
        with pytest.raises(RankLostError, match=f"^rank {rank} "):
            runner.launch(StepPlan(3, decode=(0,)))
    assert are_gone(pids)


def test_a_rank_that_fails_is_reported_with_its_error_and_nothing_stays_behind() -> None:
    def fail() -> list[int]:
        with rank_group(RANKS) as group:
            runner = group.runner()
            with pytest.raises(RankLostError, match=r"rank \d \(process \d+\) failed: \w+Error: "):
                runner.execute(StepPlan(1, blocks=(BlockUpdate(1_000, 0, 0),)))
            assert len(group.losses) == 1
            return group.pids

    gc.collect()
    before, shown = set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    assert are_gone(fail())
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before
    assert set(os.listdir("/dev/shm")) == shown
    assert "memfd:baton" not in Path("/proc/self/maps").read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(1))
def test_a_fault_at_any_instant_ends_all(seed: int) -> None:
    chance = random.Random(seed)
    with rank_group(RANKS) as group:
        runner = group.runner()
        runner.execute(begin())
        rank, number = chance.randrange(RANKS), chance.choice((signal.SIGKILL, signal.SIGSTOP))
        timer = threading.Timer(chance.uniform(0.0, 0.05), os.kill, (group.pids[rank], number))
        timer.start()

        def run_on() -> None:
            for step in range(2, 100_000):
                runner.execute(StepPlan(step, decode=(0,)) if step < 1_000 else StepPlan(step))

        with pytest.raises(RankLostError, match=f"^rank {rank} "):
            run_on()
        timer.join(WAIT_S)
    assert are_gone(group.pids)


PARENT = """
import sys
from baton_testing.engine.rank_group import rank_group
with rank_group(2) as group:
    print(*group.pids, flush=True)
    sys.stdin.read()
"""


def test_ranks_end_with_the_process_that_started_them_and_stopped_ones_too() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    with parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        assert len(pids) == RANKS
        os.kill(pids[0], signal.SIGSTOP)
        parent.kill()
        parent.wait(WAIT_S)
        end_s = time.monotonic() + WAIT_S
        while not are_gone(pids) and time.monotonic() < end_s:
            time.sleep(0.01)
        assert are_gone(pids)


def test_a_listener_of_layers_that_fails_ends_the_ranks_with_its_error() -> None:
    def fail(step: int, layers: int) -> None:
        raise KeyError(f"step {step}")

    with rank_group(RANKS) as group:
        runner = group.runner()
        runner.watch_layers(fail)
        with pytest.raises(RankLostError, match=r"^the ranks are no longer watched: KeyError: 'step 1'$"):
            runner.execute(begin())
        until_lost(group)
    assert are_gone(group.pids)


def test_a_rank_that_lacks_memory_in_a_step_is_lost_by_name() -> None:
    with rank_group(RANKS) as group:
        pid = group.pids[1]
        held = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (held, held))
        history = tuple(range(1_000, 3_000_000))
        with pytest.raises(RankLostError, match=rf"^rank 1 \(process {pid}\) failed: MemoryError"):
            group.runner().execute(StepPlan(1, opens=(OpenSlot(0, GREEDY, 0, history, (), 0, None),)))
        assert len(group.losses) == 1
    assert are_gone(group.pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_to_the_whole_group_leaves_ranks_to_their_worker_from_the_start(number: signal.Signals) -> None:
    """A worker that drains needs its ranks, and may be asked to while they start."""
    processes = RankProcesses.start(1)
    try:
        end_s = time.monotonic() + WAIT_S
        while not processes.pids and time.monotonic() < end_s:
            time.sleep(0.001)
        (pid,) = processes.pids
        os.kill(pid, number)
        assert len(processes.load(LoadShare(str(FOLDER), None, None, 1))) == 1
    finally:
        processes.close()
