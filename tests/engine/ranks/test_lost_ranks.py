"""Ranks that die, stop, fail or crawl: all end together within seconds, by name, and leave nothing behind."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from baton_engine.collectives.collective import RankLostError
from baton_engine.scheduling.step_plan import BlockUpdate, OpenSlot, PrefillChunk, StepPlan
from baton_testing.engine.model_steps import GREEDY
from baton_testing.engine.rank_group import RankGroup, rank_group

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
        loss = until_lost(group)
        with pytest.raises(RankLostError, match=rf"^rank {rank} \(process {pids[rank]}\) {cause}"):
            raise loss
        with pytest.raises(RankLostError, match=f"^rank {rank} "):
            runner.launch(StepPlan(2, decode=(0,)))
    assert are_gone(pids)


def test_lost_ranks_leave_no_descriptor_and_no_memory() -> None:
    def lose() -> None:
        with rank_group(RANKS) as group:
            group.runner().execute(begin())
            os.kill(group.pids[0], signal.SIGKILL)
            until_lost(group)

    gc.collect()
    before, shown = set(os.listdir("/proc/self/fd")), set(os.listdir("/dev/shm"))
    lose()
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before
    assert set(os.listdir("/dev/shm")) == shown
    maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    assert "memfd:baton" not in maps


def test_a_wait_for_a_step_ends_when_a_rank_is_lost() -> None:
    with rank_group(RANKS) as group:
        runner = group.runner()
        runner.execute(begin())
        os.kill(group.pids[1], signal.SIGSTOP)
        runner.launch(StepPlan(2, decode=(0,)))
        assert not runner.is_done()
        with pytest.raises(RankLostError, match=r"rank 1 .* is stopped"):
            runner.collect()


def test_a_rank_that_fails_is_reported_with_its_error() -> None:
    with rank_group(RANKS) as group:
        runner = group.runner()
        with pytest.raises(RankLostError, match=r"rank \d \(process \d+\) failed: \w+Error: "):
            runner.execute(StepPlan(1, blocks=(BlockUpdate(1_000, 0, 0),)))
        assert len(group.losses) == 1
    assert are_gone(group.pids)


def test_a_rank_that_crawls_slows_the_others_and_all_draw_the_same() -> None:
    with rank_group(RANKS) as group:
        runner = group.runner()
        ids = [runner.execute(begin()).tokens[0].ids[0]]
        ids += [runner.execute(StepPlan(step, decode=(0,))).tokens[0].ids[0] for step in range(2, 12)]
        runner.execute(StepPlan(12, closes=(0,)))
        over = threading.Event()

        def hold_up() -> None:
            while not over.is_set():
                os.kill(group.pids[1], signal.SIGSTOP)
                time.sleep(0.1)
                os.kill(group.pids[1], signal.SIGCONT)
                time.sleep(0.01)

        thread = threading.Thread(target=hold_up)
        thread.start()
        try:
            slow = [runner.execute(begin()).tokens[0].ids[0]]
            slow += [runner.execute(StepPlan(step, decode=(0,))).tokens[0].ids[0] for step in range(2, 12)]
        finally:
            over.set()
            thread.join(WAIT_S)
        assert slow == ids
        assert group.losses == []


@pytest.mark.parametrize("seed", range(3))
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


@pytest.mark.parametrize("is_stopped", [False, True])
def test_ranks_end_with_the_process_that_started_them(is_stopped: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", PARENT]
    parent = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    with parent:
        assert parent.stdout is not None
        pids = [int(text) for text in parent.stdout.readline().split()]
        assert len(pids) == RANKS
        if is_stopped:
            os.kill(pids[0], signal.SIGSTOP)
        parent.kill()
        parent.wait(WAIT_S)
        end_s = time.monotonic() + WAIT_S
        while not are_gone(pids) and time.monotonic() < end_s:
            time.sleep(0.01)
        assert are_gone(pids)
