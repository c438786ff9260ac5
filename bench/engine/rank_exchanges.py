"""The sums between ranks by themselves: processes with a GPU each, whose exchanges run in graphs.

`python -m bench gpu_ranks exchange` starts them. Every way is checked first, in a graph too: integers that every type
holds give exact sums, whatever the order. Beside the worker's own kernels: NCCL's and those of torch's symmetric
memory, which never use multicast here.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric
from torch import Tensor

from baton_engine.collectives.collective import RankShare
from baton_engine.collectives.device_collective import DeviceCollective
from baton_engine.collectives.shared_memory_collective import CollectiveParts, SharedMemoryCollective
from baton_engine.ranks.rank_main import end_with_parent
from baton_engine.ranks.rank_processes import WITHOUT_MULTICAST
from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.dense.rms_norm import add_rms_norm
from baton_kernels.exchange.gpu.pushed_sum import pushed_sum, pushed_sum_norm
from baton_kernels.exchange.gpu.rank_sum import Launch, one_shot, two_shot
from baton_kernels.exchange.gpu.rank_sum_norm import sum_norm
from baton_kernels.exchange.rank_region import LANDING_BYTES, SLOT_BYTES

SIZES: Final = (8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 32 << 20)
HIDDEN: Final = 4_096
REPLAYS, REPETITIONS = 5, 9
DEADLINE_S: Final = 60.0
"""Longest wait of a rank for another, which may be compiling."""
LAUNCHES: Final = tuple(
    Launch(programs, block, warps)
    for programs in (32, 64, 128)
    for block, warps in ((1_024, 4), (2_048, 4), (2_048, 8), (4_096, 8), (8_192, 16))
)
"""Ways to launch our sums that are compared."""
PUSHES: Final = ((512, 4), (1_024, 4), (1_024, 8))
"""Words of a program and its warps: 128 programs hold the largest pushed sum."""
NORM_WARPS: Final = (4, 8, 16)

Call = Callable[[Tensor], Tensor]
Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to add up the ranks' tensors."""

    name: str
    call: Call
    """Every rank's x → the sum."""
    in_place: bool = False
    """The sum takes the place of x."""
    launch: str = ""


class RankTimes:
    """One rank's timers. All ranks make the same calls."""

    def __init__(self, host: SharedMemoryCollective, device: torch.device) -> None:
        self._host, self._device = host, device
        self.ranks, self.rank = host.share.ranks, host.share.rank

    def meet(self) -> None:
        """Wait until the device is idle at every rank."""
        self._wait()
        self._host.all_gather(torch.zeros(1))

    def drawn(self, size: int) -> tuple[Tensor, Tensor]:
        """This rank's x [size / 2] of small integers, and the sum over all ranks, bfloat16."""
        parts = []
        for rank in range(self.ranks):
            draw = torch.Generator(self._device).manual_seed(rank)
            parts.append(torch.randint(-16, 17, (size // 2,), generator=draw, device=self._device).to(torch.bfloat16))
        return parts[self.rank], torch.stack(parts).sum(0).to(torch.bfloat16)

    def measure(self, way: Way, size: int) -> Line:
        """µs of one call in a graph of many: the median over repetitions at the slowest rank, and whether all are
        exact. Raises what the way raises."""
        calls = max(4, min(40, (64 << 20) // size))
        x, total = self.drawn(size)
        brought = x.clone()
        self.meet()
        is_exact = torch.equal(way.call(x), total)
        x.copy_(brought)
        self.meet()
        replay, out = self._record(way.call, x, calls)
        self.meet()
        replay()
        self._wait()
        expected = total * float(self.ranks) ** (calls - 1) if way.in_place else total
        is_exact &= torch.equal(out(), expected)
        x.copy_(torch.zeros_like(x) if way.in_place else brought)
        times = []
        for _ in range(REPETITIONS):
            self.meet()
            times.append(self._time(replay) / calls / REPLAYS)
        if not way.in_place:
            is_exact &= torch.equal(out(), total)
        mine = torch.tensor([median(times), min(times), max(times), float(is_exact)])
        every = self._host.all_gather(mine).view(self.ranks, -1)
        us, least, most = (round(value, 2) for value in every[int(every[:, 0].argmax()), :3].tolist())
        line: Line = {"what": "exchange", "ranks": self.ranks, "bytes": size, "way": way.name, "us": us}
        line |= {"least_us": least, "most_us": most, "exact": bool(every[:, 3].all())}
        return line | {"launch": way.launch} if way.launch else line

    def _record(self, call: Call, x: Tensor, calls: int) -> tuple[Callable[[], None], Callable[[], Tensor]]:
        """The calls as a graph that is replayed, and the last sum that it leaves."""
        outs = [x]

        def work() -> None:
            for _ in range(calls):
                outs[0] = call(x)

        if self._device.type == "cpu":
            return work, lambda: outs[0]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            work()
        return graph.replay, lambda: outs[0]

    def _time(self, replay: Callable[[], None]) -> float:
        """µs of REPLAYS replays. One more comes before: the ranks begin apart, and are together after it."""
        if self._device.type == "cpu":
            replay()
            begin_s = time.perf_counter()
            for _ in range(REPLAYS):
                replay()
            return (time.perf_counter() - begin_s) * 1e6
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        replay()
        begin.record()
        for _ in range(REPLAYS):
            replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


class OwnWays:
    """The worker's kernels, as it launches them and otherwise, for x of one size."""

    def __init__(self, collective: DeviceCollective, size: int) -> None:
        self._collective, self._region, self._size = collective, collective.region, size
        self._rows = size // 2 // HIDDEN
        self._weight = torch.ones(HIDDEN, dtype=torch.bfloat16, device=collective.device)
        self._residual = torch.zeros(self._rows, HIDDEN, dtype=torch.bfloat16, device=collective.device)

    def all(self) -> Iterator[Way]:
        collective, parts = self._collective, (self._residual, self._weight, 1e-5)
        yield Way("all_reduce", collective.all_reduce)
        yield Way("all_reduce_norm", self._rowwise(lambda x: collective.all_reduce_norm(x, *parts)))
        yield Way("all_reduce, then norm", self._rowwise(lambda x: add_rms_norm(collective.all_reduce(x), *parts)))
        for launch in LAUNCHES:
            text = f"{launch.programs} programs of {launch.block}, {launch.warps} warps"
            yield Way("one shot", self._in_pieces(one_shot, launch), launch=text)
            if self._size >= 64 << 10:
                yield Way("two shots", self._in_pieces(two_shot, launch), launch=text)
        if self._size <= 4 << 20:
            for warps in NORM_WARPS:
                yield Way("sum and norm", self._normed(sum_norm, warps), launch=f"{warps} warps")
        if self._size <= LANDING_BYTES:
            for block, warps in PUSHES:
                yield Way("pushed", self._pushed(block, warps), launch=f"blocks of {block} words, {warps} warps")
            for warps in NORM_WARPS:
                yield Way("pushed sum and norm", self._normed(pushed_sum_norm, warps), launch=f"{warps} warps")

    def _rowwise(self, norm: Callable[[Tensor], tuple[Tensor, Tensor]]) -> Call:
        """The new residual stream, which is the sum: it was zero."""
        return lambda x: norm(x.view(self._rows, HIDDEN))[1].view(-1)

    def _normed(self, sum_and_norm: Callable[..., tuple[Tensor, Tensor]], warps: int) -> Call:
        return self._rowwise(lambda x: sum_and_norm(x, self._residual, self._weight, 1e-5, self._region, warps))

    def _in_pieces(self, add_up: Callable[..., None], launch: Launch) -> Call:
        def call(x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            pieces, targets = torch.split(x, SLOT_BYTES // 2), torch.split(out, SLOT_BYTES // 2)
            for piece, target in zip(pieces, targets, strict=True):
                add_up(piece, target, self._region, launch)
            return out

        return call

    def _pushed(self, block: int, warps: int) -> Call:
        def call(x: Tensor) -> Tensor:
            out = torch.empty_like(x)
            pushed_sum(x, out, self._region, block, warps)
            return out

        return call


def foreign_ways(size: int, device: torch.device) -> Iterator[Way]:
    """The process group's sum and those of torch's symmetric memory."""

    def group_sum(x: Tensor) -> Tensor:
        dist.all_reduce(x)
        return x

    yield Way(dist.get_backend(), group_sum, in_place=True)
    if device.type == "cpu":
        return
    group = dist.group.WORLD.group_name
    shared = symmetric.empty(size // 2, dtype=torch.bfloat16, device=device)
    handle = symmetric.rendezvous(shared, group)
    if handle.multicast_ptr:
        raise RuntimeError("torch's symmetric memory uses multicast, which must stay off")
    operations: Any = torch.ops.symm_mem

    def torch_one(x: Tensor) -> Tensor:
        shared.copy_(x)
        total: Tensor = operations.one_shot_all_reduce(shared, "sum", group)
        return total

    def torch_one_alone(x: Tensor) -> Tensor:
        total: Tensor = operations.one_shot_all_reduce(shared, "sum", group)
        return total

    def torch_two(x: Tensor) -> Tensor:
        shared.copy_(x)
        total: Tensor = operations.two_shot_all_reduce_(shared, "sum", group)
        return total

    yield Way("torch one shot, x copied in", torch_one)
    yield Way("torch one shot, x there", torch_one_alone)
    yield Way("torch two shots, x copied in", torch_two)


def run_rank(
    share: RankShare, address: str, descriptors: Sequence[int], sizes: Sequence[int], device: torch.device
) -> None:
    """Time all ways; the first rank prints a line for each. A way that fails ends the run, after a line that says so:
    the ranks are then apart. On a CPU: trials of this program, with the host's sums."""
    host = SharedMemoryCollective(share, CollectiveParts.attach(descriptors, share.ranks), DEADLINE_S)
    times = RankTimes(host, device)

    def time_all(ways: Iterator[Way], size: int) -> None:
        for way in ways:
            try:
                line = times.measure(way, size)
            except Exception as error:
                text = f"rank {share.rank}: {type(error).__name__}: {error}".partition("\n")[0]
                print(json.dumps({"what": "exchange", "bytes": size, "way": way.name, "error": text}), flush=True)
                raise
            if share.rank == 0:
                print(json.dumps(line), flush=True)

    if device.type == "cuda":
        torch.cuda.set_device(device)
        collective = DeviceCollective(host, device)
        with compiled_together():
            for size in sizes:
                x, _ = times.drawn(size)
                for way in OwnWays(collective, size).all():
                    way.call(x)
        for size in sizes:
            time_all(OwnWays(collective, size).all(), size)
            collective.check()
    else:
        for size in sizes:
            time_all(iter([Way("all_reduce", host.all_reduce)]), size)
    backend, bound = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    dist.init_process_group(backend, init_method=address, rank=share.rank, world_size=share.ranks, device_id=bound)
    for size in sizes:
        time_all(foreign_ways(size, device), size)
    times.meet()
    sys.stdout.flush()
    os._exit(0)  # communicators that graphs hold may wait for one another at their end


def start(ranks: int, sizes: Sequence[int], timeout_s: float, device: str = "cuda") -> Iterator[Line]:
    """Run the ranks to their end, or until the timeout. Yields what they print. Raises RuntimeError where one fails."""
    parts = CollectiveParts.create(ranks)
    argv = [sys.executable, "-m", "bench.engine.rank_exchanges", str(ranks), f"tcp://127.0.0.1:{_free_port()}"]
    argv += [",".join(map(str, parts.descriptors)), ",".join(map(str, sizes)), device]
    reading, writing = os.pipe()
    processes = [
        subprocess.Popen(
            [*argv, str(rank)], pass_fds=parts.descriptors, stdout=writing, env=os.environ | WITHOUT_MULTICAST
        )
        for rank in range(ranks)
    ]
    os.close(writing)

    def end() -> None:
        for process in processes:
            process.kill()

    watch = threading.Timer(timeout_s, end)
    watch.start()
    try:
        with os.fdopen(reading) as lines:
            for text in lines:
                yield json.loads(text)
        for process in processes:
            if process.wait(20):
                raise RuntimeError(f"a rank ended with status {process.returncode}")
    finally:
        watch.cancel()
        end()
        for process in processes:
            process.wait()


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


if __name__ == "__main__":
    end_with_parent(os.getppid())
    number, where, inherited, wanted, kind, own = sys.argv[1:]
    run_rank(
        RankShare(int(own), int(number)),
        where,
        [int(text) for text in inherited.split(",")],
        [int(text) for text in wanted.split(",")],
        torch.device(kind, int(own)) if kind == "cuda" else torch.device(kind),
    )
