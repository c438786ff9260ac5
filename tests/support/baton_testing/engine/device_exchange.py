"""Ranks as processes whose exchanges are checked: `python -m baton_testing.engine.device_exchange`.

Each has a GPU of its own where there are enough; otherwise all share the first. Run by tests alone. Without arguments
it starts the ranks and prints what each found; a rank's arguments are its number and the descriptors that it inherits.
The oracle is the exchange through the host's memory, which adds up in the same order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from baton_engine.collectives.collective import RankLostError, RankShare
from baton_engine.collectives.device_collective import DeviceCollective
from baton_engine.collectives.shared_memory_collective import CollectiveParts, SharedMemoryCollective
from baton_kernels.dense.rms_norm import add_rms_norm

RANKS = int(os.environ.get("BATON_TEST_EXCHANGE_RANKS", "2"))
FEW_LOOKS = 200_000
"""Looks for another rank's signal before it is given up: a second or more where the ranks share a GPU in turns."""
FEW_LOOKS_ALONE = 8_000_000
"""The same for ranks that have a GPU each, where a look takes about 0.25 µs."""
SHAPES = ((1, 1), (1, 4096), (3, 40), (32, 4096), (130, 2880), (700, 4096), (5000, 4096))
TYPES = (torch.bfloat16, torch.float16, torch.float32)


class ExchangeChecks:
    """The checks of one rank."""

    def __init__(self, host: SharedMemoryCollective, device: DeviceCollective) -> None:
        self._host, self._device = host, device
        self._draw = torch.Generator("cuda").manual_seed(host.share.rank)

    def _drawn(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.randn(shape, generator=self._draw, device="cuda").to(dtype)

    def _expected(self, x: Tensor) -> Tensor:
        return self._host.all_reduce(x.cpu()).cuda()

    def sums(self) -> Iterator[str]:
        for shape in SHAPES:
            for dtype in TYPES:
                x = self._drawn(shape, dtype)
                total = self._device.all_reduce(x)
                if not torch.equal(total, self._expected(x)) or not torch.equal(total, self._device.all_reduce(x)):
                    yield f"sum of {shape} {dtype}"

    def norms(self) -> Iterator[str]:
        for shape in SHAPES[1:5]:
            for dtype in TYPES:
                x = self._drawn(shape, dtype)
                residual, weight = torch.ones_like(x), torch.full(shape[1:], 0.5, dtype=dtype, device="cuda")
                normed, total = self._device.all_reduce_norm(x, residual, weight, 1e-5)
                whole, added = add_rms_norm(self._expected(x), residual, weight, 1e-5)
                if not torch.equal(total, added):
                    yield f"residual of {shape} {dtype}"
                if not torch.allclose(normed.float(), whole.float(), rtol=2**-7, atol=1e-6):
                    yield f"norm of {shape} {dtype}"
                again = self._host.all_gather(normed.cpu())
                first, *others = again.chunk(RANKS, 1)
                if not all(torch.equal(other, first) for other in others):
                    yield f"norm of {shape} {dtype} at the ranks"

    def gathers(self) -> Iterator[str]:
        for shape in SHAPES[:5]:
            for dtype in (*TYPES, torch.int64):
                x = (self._drawn(shape, torch.float32) * 1000).to(dtype)
                if not torch.equal(self._device.all_gather(x).cpu(), self._host.all_gather(x.cpu())):
                    yield f"gathered {shape} {dtype}"

    def graphs(self) -> Iterator[str]:
        """A graph with exchanges of several kinds and sizes, between exchanges outside it, replayed again and again."""
        x, large = torch.zeros(3, 512, device="cuda"), torch.zeros(700, 4096, dtype=torch.bfloat16, device="cuda")

        def work() -> tuple[Tensor, Tensor, Tensor]:
            first = self._device.all_reduce(x)
            return self._device.all_gather(first), self._device.all_reduce(large), self._device.all_reduce(first * 2)

        work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            outputs = work()
        for turn in range(20):
            x.copy_(self._drawn((3, 512), torch.float32))
            large.copy_(self._drawn((700, 4096), torch.bfloat16))
            graph.replay()
            if turn % 3 == 0:
                self._device.all_gather(x)
            first = self._expected(x)
            expected = (torch.cat([first] * RANKS, 1), self._expected(large), self._expected(first * 2))
            if not all(torch.equal(got, wanted) for got, wanted in zip(outputs, expected, strict=True)):
                yield f"replay {turn}"

    def many(self) -> Iterator[str]:
        """Exchanges launched without waiting: sizes change from turn to turn, so that slots are reused at once."""
        brought = [self._drawn((1 + turn * 37 % 300, 64), torch.float32) for turn in range(200)]
        totals = [self._device.all_reduce(x) for x in brought]
        torch.cuda.synchronize()
        for turn, (x, total) in enumerate(zip(brought, totals, strict=True)):
            if not torch.equal(total, self._expected(x)):
                yield f"exchange {turn} of many"


def run_rank(rank: int, descriptors: list[int], *, dies: bool) -> None:
    has_own_gpu = torch.cuda.device_count() >= RANKS
    device = torch.device("cuda", rank if has_own_gpu else 0)
    torch.cuda.set_device(device)
    host = SharedMemoryCollective(RankShare(rank, RANKS), CollectiveParts.attach(descriptors, RANKS), 120.0)
    if dies:
        patient = DeviceCollective(host, device)  # its ranks compile, which takes them unequally long
        patient.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        collective = DeviceCollective(host, device, FEW_LOOKS_ALONE if has_own_gpu else FEW_LOOKS)
        collective.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        collective.check()
        host.all_gather(torch.zeros(1))  # no rank is killed before the others are through
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        began_s = time.monotonic()
        for _ in range(50):
            collective.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        try:
            collective.check()
        except RankLostError:
            print(f"lost after {time.monotonic() - began_s:.2f} s", flush=True)
        return
    collective = DeviceCollective(host, device)
    checks = ExchangeChecks(host, collective)
    for check in (checks.sums, checks.norms, checks.gathers, checks.graphs, checks.many):
        began_s = time.monotonic()
        wrong = list(check())
        collective.check()
        print(f"rank {rank} {check.__name__}: {wrong or 'exact'} in {time.monotonic() - began_s:.1f} s", flush=True)


def start(*, dies: bool, timeout_s: float = 240.0) -> list[str]:
    """Run the ranks to their end. Returns what each printed."""
    parts = CollectiveParts.create(RANKS)
    argv = [sys.executable, "-m", "baton_testing.engine.device_exchange", "dies" if dies else "lives"]
    processes = [
        subprocess.Popen(
            [*argv, str(rank), *map(str, parts.descriptors)],
            pass_fds=parts.descriptors,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        return [process.communicate(timeout=timeout_s)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(*start(dies=False), *start(dies=True), sep="\n")
    else:
        run_rank(int(sys.argv[2]), [int(text) for text in sys.argv[3:]], dies=sys.argv[1] == "dies")
