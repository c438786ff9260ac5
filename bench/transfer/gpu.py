"""KV from one GPU into another's landing region through the `ucx` transport, then into blocks there.

`python -m bench gpu_transfer [--cpu] [--out FILE]`

Two processes, a GPU each (`--cpu`: none, to try the script). First single PUT sizes, back to back, eight in flight, by
the bare agent. Then whole hand-overs of Llama-3.1-8B's KV in blocks of 64 tokens (8 MiB) through the writer that
workers use, all kinds of `HANDOVERS` in turn: P puts blocks from all over its pool; D scatters what P says has arrived
into shuffled blocks of its own, checksums from the same loads, portion by portion; all of D's checksums must equal P's.
The word of what arrived travels over a socket.

A hand-over's time is the sum of: `start`, until the first PUT is posted; `puts`, until the UCX thread saw the last one
end; `told`, until P's loop knew; `word`, until D did; `tail`, until all was scattered.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from bench.machine import this_machine
from bench.results import write
from bench.transfer.gpu_landing import BLOCK_TOKENS, EPOCH, MESSAGE, STAMPS, Place, decode, receive, receive_message

from baton_kernels.kv.kv_checksum import kv_checksums
from baton_kernels.kv.kv_units import UnitRange
from baton_kv_transfer.layout import Extent, joined
from baton_kv_transfer.network import SocketConnection
from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.ucx.binding import Piece, UcxAgent, WriteState
from baton_kv_transfer.transports.ucx.descriptor import UcxDescriptor, unpack
from baton_kv_transfer.transports.ucx.thread import UcxThread
from baton_kv_transfer.transports.ucx.writer import UcxWriter, connect

IN_FLIGHT = 8
SWITCH_INTERVAL_S = 0.001
"""As in the workers."""
WHOLE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Kind:
    """One way to hand over. Sizes in blocks, 8 MiB on a GPU."""

    halves: int
    """The pool's halves in use: 1 or 2 GiB."""
    batched: bool = True
    """True if UCX, and through it CUDA, get a write's pieces as one list."""
    piece: float = 1.0
    """Contiguous blocks, a descriptor each; a fraction: blocks in parts, as of layer groups."""
    put: int = 4
    """Blocks a request."""
    in_flight: int = 8
    portion: int = 4
    """Blocks that D scatters at once."""


CHANGES: Final[tuple[dict[str, Any], ...]] = (
    *({"put": put, "in_flight": flying} for put in (1, 2) for flying in (8, 16, 32)),
    *({"in_flight": flying} for flying in (4, 16, 32)),
    *({"put": 8, "in_flight": flying} for flying in (4, 8, 16)),
    *({"piece": piece, "put": 4, "batched": batched} for piece in (1, 4) for batched in (False, True)),
    *({"portion": portion} for portion in (1, 2, 8, 16, 32, WHOLE)),
    *({"piece": 1 / 16, "put": 8, "batched": batched} for batched in (False, True)),
)
HANDOVERS: Final = tuple(Kind(halves, **changes) for halves in (1, 2) for changes in CHANGES)


def bare_rate(place: Place, agent: UcxAgent, source: MemoryRange, target: UcxDescriptor, size: int) -> dict[str, float]:
    """PUTs of `size`, eight in flight and one alone, straight through the agent, polled without pause."""
    device = None if target.device < 0 else target.device
    room = min(source.length, target.length)
    slots = max(1, min(IN_FLIGHT, room // size))

    def post(slot: int) -> int:
        at = slot * size
        handle, state = agent.post(
            target.agent, [(source.address + at, target.address + at, size)], source.device, device
        )
        if state is WriteState.BROKEN:
            raise SystemExit("a write broke")
        return handle

    def finish(handle: int) -> None:
        while (state := agent.state(handle)) is WriteState.PENDING:
            pass
        agent.release(handle)
        if state is WriteState.BROKEN:
            raise SystemExit("a write broke")

    def stream(count: int) -> float:
        begin = time.perf_counter()
        open_puts: list[int] = []
        for number in range(count):
            if len(open_puts) == slots:
                finish(open_puts.pop(0))
            open_puts.append(post(number % slots))
        for handle in open_puts:
            finish(handle)
        return time.perf_counter() - begin

    count = max(16, min(400, (4 << 30) // size)) if place.device.type == "cuda" else 8
    stream(slots + 2)
    rate = median(count * size / stream(count) / 1e9 for _ in range(5))
    alone = median(stream(1) for _ in range(15))
    return {"bytes": size, "gb_s": rate, "alone_us": alone * 1e6}


def rate_of(
    place: Place, source: MemoryRange, target: UcxDescriptor, size: int
) -> Callable[[UcxAgent], dict[str, float]]:
    return lambda agent: bare_rate(place, agent, source, target, size)


class Watched(UcxAgent):
    """Remembers when the first write since `posted_s` was 0 was posted, and when the last was seen to have ended."""

    posted_s = ended_s = 0.0

    def post(
        self, name: str, pieces: Sequence[Piece], source_device: int | None = None, target_device: int | None = None
    ) -> tuple[int, WriteState]:
        result = super().post(name, pieces, source_device, target_device)
        self.ended_s = time.perf_counter()  # of a write that is done when it is posted
        self.posted_s = self.posted_s or self.ended_s
        return result

    def state(self, handle: int) -> WriteState:
        state = super().state(handle)
        if state is not WriteState.PENDING:
            self.ended_s = time.perf_counter()
        return state


@dataclass(slots=True)
class Way:
    """A UCX thread and a writer on it."""

    thread: UcxThread
    agent: Watched
    writer: UcxWriter
    there: socket.socket

    async def close(self) -> None:
        self.writer.close("done")
        self.there.close()
        await self.thread.stop()


async def open_way(place: Place, target: UcxDescriptor, batched: bool) -> Way:
    """Raises UcxError."""
    agents: list[Watched] = []

    def make() -> UcxAgent:
        place.enter()
        agents.append(Watched(f"prefill-{secrets.token_hex(8)}", progress=False, batched=batched))
        agents[0].register(place.memory(place.pool))
        return agents[0]

    thread = UcxThread(make)
    await thread.start(120.0)
    lane = await thread.run(connect(target), 60.0)
    here, there = socket.socketpair()
    return Way(thread, agents[0], UcxWriter(thread, target, SocketConnection(here), lambda _: True, print, lane), there)


def blocks_of(place: Place, kind: Kind) -> torch.Tensor:
    """Which blocks go, from all over the pool, in runs of a piece."""
    run = max(1, int(kind.piece))
    runs = torch.randperm(place.blocks // run, generator=torch.Generator().manual_seed(2))
    return (runs[:, None] * run + torch.arange(run)).flatten()[: place.blocks * kind.halves // 2].to(torch.int32)


async def hand_over(
    place: Place, way: Way, sock: socket.socket, kind: Kind, order: list[int]
) -> tuple[list[float], torch.Tensor]:
    """One hand-over of the blocks of `order`: its times as above, in seconds, and D's checksums."""
    ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    done, posted, contiguous, count = set[int](), 0, 0, len(order)
    size, pool = place.block_bytes, place.memory(place.pool)
    part = int(size * kind.piece)

    def sources(first: int) -> list[Extent]:
        extents = joined([Extent(block * size, size) for block in order[first : first + kind.put]])
        return [Extent(at, part) for extent in extents for at in range(extent.offset, extent.end, part)]

    def post() -> None:
        nonlocal posted
        if posted < count:
            block, posted = posted, posted + kind.put
            landing = (Extent(block * size, kind.put * size),)
            way.writer.copy(pool, lambda: sources(block), landing, lambda detail: arrived(block, detail))

    def arrived(block: int, detail: str | None) -> None:
        nonlocal contiguous
        if detail is not None:
            if not ended.done():
                ended.set_exception(RuntimeError(detail))
            return
        done.add(block)
        before = contiguous
        while contiguous in done:
            contiguous += kind.put
        if len(done) * kind.put == count:
            ended.set_result(time.perf_counter())
        post()
        if contiguous != before:
            sock.sendall(MESSAGE.pack(contiguous, 0))

    way.agent.posted_s = 0.0
    begin_s = time.perf_counter()
    sock.sendall(MESSAGE.pack(count, kind.portion))
    for _ in range(kind.in_flight):
        post()
    told_s = await ended
    heard_s, scattered_s = STAMPS.unpack(receive(sock, STAMPS.size))
    moments = (begin_s, way.agent.posted_s, way.agent.ended_s, told_s, heard_s, scattered_s)
    steps = [after - before for before, after in pairwise(moments)]
    sums = torch.frombuffer(bytearray(receive_message(sock)), dtype=torch.int64)
    return steps, sums.view(count, place.layers, 2)


async def one(place: Place, way: Way, sock: socket.socket, kind: Kind) -> list[float]:
    """A hand-over of fresh bytes, its checksums compared."""
    order = blocks_of(place, kind)
    place.pool.normal_()
    expected = kv_checksums(place.pool, order.to(place.device), UnitRange(BLOCK_TOKENS, 0, len(order))).cpu()
    place.settle()
    steps, sums = await hand_over(place, way, sock, kind, order.tolist())
    if not torch.equal(sums, expected):
        raise SystemExit("checksums differ")
    return steps


async def in_turn(place: Place, way: Way, sock: socket.socket, kinds: list[Kind]) -> list[list[float]]:
    """A row of each kind: medians over rounds in which each has its turn, so that what changes changes for all."""
    times: dict[Kind, list[list[float]]] = {kind: [] for kind in kinds}
    for number in range(place.rounds + 2):
        for kind, samples in times.items():
            steps = await one(place, way, sock, kind)
            if number >= 2:
                samples.append(steps)
    rows = []
    for kind, samples in times.items():
        payload = place.blocks * kind.halves // 2 * place.block_bytes
        steps_ms = [round(median(column) * 1e3, 3) for column in zip(*samples, strict=True)]
        rate = payload / median(sum(steps) for steps in samples) / 1e9
        rows.append([*astuple(kind), round(rate, 1), *steps_ms])
    return rows


async def prefill(place: Place, sock: socket.socket) -> dict[str, Any]:
    place.enter()
    place.pool.normal_()
    place.settle()
    target = unpack(receive_message(sock), EPOCH, place.pool.nbytes)
    landing_facts = json.loads(receive_message(sock))
    puts: list[dict[str, float]] = []
    handovers: list[list[float]] = []
    lane = ""
    print("GiB, batched, piece, put, in flight, portion, GB/s | start, puts, told, word, tail, ms")
    for batched in (False, True):
        way = await open_way(place, target, batched)
        for size in place.sizes if batched else ():
            puts.append(await way.thread.run(rate_of(place, place.memory(place.pool), target, size), 120.0))
            print(puts[-1], flush=True)
        kinds = [kind for kind in dict.fromkeys(HANDOVERS) if kind.batched is batched]
        for row in await in_turn(place, way, sock, kinds):
            handovers.append(row)
            print(*row, flush=True)
        lane = way.writer.lane
        await way.close()
    sock.sendall(MESSAGE.pack(0, 0))
    result = {
        "machine": this_machine().as_json(),
        "device": "cpu" if place.device.type == "cpu" else torch.cuda.get_device_name(place.device),
        "lane": lane,
        "landing": landing_facts,
        "puts": puts,
        "handovers": handovers,
    }
    return result


def main() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--out", type=Path, help="a JSON file for the figures")
    parser.add_argument("--decode", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.decode is not None:
        decode(Place(options.cpu, 1), socket.socket(fileno=options.decode))
        return
    here, there = socket.socketpair()
    command = [sys.executable, "-m", "bench.transfer.gpu", "--decode", str(there.fileno())]
    command += ["--cpu"] if options.cpu else []
    other = subprocess.Popen(command, pass_fds=[there.fileno()])
    there.close()
    here.settimeout(120.0)
    try:
        result = asyncio.run(prefill(Place(options.cpu, 0), here))
        if options.out is not None:
            write(options.out, result)
        here.close()
        other.wait(30)
    finally:
        other.kill()


if __name__ == "__main__":
    main()
