"""KV from one GPU into another's landing region through the `ucx` transport, then into blocks there.

`python -m bench.gpu_transfer [--cpu] [--out FILE]`

Two processes, a GPU each (`--cpu`: none, to try the script). First single PUT sizes, back to back, eight in flight: the
bare agent, and the writer that workers use. Then whole hand-overs of Llama-3.1-8B's KV in blocks of 64 tokens (8 MiB):
P puts blocks from all over its pool; D scatters what P says has arrived into shuffled blocks of its own, checksums
from the same loads; the hand-over ends when all of D's checksums equal P's. Last, the same scatter without checksums
and alone. The word of what arrived travels over a socket between the two.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from baton_kernels.kv_checksum import kv_checksums
from baton_kernels.kv_copy import scatter_kv
from baton_kv_transfer.layout import Extent
from baton_kv_transfer.link import Connection
from baton_kv_transfer.ucx import Memory, UcxAgent, WriteState
from baton_kv_transfer.ucx_descriptor import UcxDescriptor, unpack
from baton_kv_transfer.ucx_landing import describe
from baton_kv_transfer.ucx_thread import UcxThread
from baton_kv_transfer.ucx_writer import UcxWriter, connect
from bench.machine import this_machine

EPOCH: Final = b"gpu-transfer-run"
LAYERS, KV_HEADS, BLOCK_TOKENS, HEAD_DIM = 32, 8, 64, 128
IN_FLIGHT = 8
SWITCH_INTERVAL_S = 0.001
"""As in the workers."""
WORD: Final = struct.Struct("!II")
"""What P tells: kind of hand-over, PUTs done so far."""
CHECKED, PLAIN, END = 1, 0, 9
DONE: Final = b"!"
HANDOVERS: Final = (
    (CHECKED, 1, 8, 1), (CHECKED, 1, 32, 1), (CHECKED, 1, 128, 1), (CHECKED, 1, 8, 4), (CHECKED, 1, 32, 4),
    (CHECKED, 1, 8, 8), (CHECKED, 1, 16, 8), (PLAIN, 1, 16, 8),
    (CHECKED, 2, 8, 4), (CHECKED, 2, 8, 8), (CHECKED, 2, 32, 8), (PLAIN, 2, 32, 8),
)  # fmt: skip
"""Checked or plain, half or all of the pool, PUTs in flight, blocks a PUT (of 8 MiB on a GPU, anywhere in P's pool)."""


class Place:
    """A side's device and sizes."""

    def __init__(self, cpu: bool, number: int) -> None:
        self.device = torch.device("cpu") if cpu else torch.device("cuda", number)
        self.layers = 2 if cpu else LAYERS
        self.blocks = 16 if cpu else 256
        """2 GiB of blocks on a GPU."""
        self.sizes = [1 << bits for bits in ((16, 18) if cpu else (16, 18, 20, 21, 22, 23, 24, 26, 28))]
        self.rounds = 3 if cpu else 15
        shape = (self.blocks, self.layers, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM)
        self.pool = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        self.block_bytes = self.pool[0].nbytes

    def memory(self, tensor: torch.Tensor) -> Memory:
        return Memory(tensor.data_ptr(), tensor.nbytes, None if self.device.type == "cpu" else self.device.index)

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def enter(self) -> None:
        """In a thread that calls UCX: it looks for the thread's CUDA context."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize(self.device)


# The decode worker ----------------------------------------------------------------------------------------------------


def decode(place: Place, sock: socket.socket) -> None:
    place.enter()
    landing = torch.zeros(place.pool.numel(), dtype=torch.bfloat16, device=place.device)
    place.pool.zero_()
    order = torch.randperm(place.blocks, generator=torch.Generator().manual_seed(1))
    blocks = order.to(torch.int32).to(place.device)
    sums = torch.zeros(place.blocks, place.layers, 2, dtype=torch.int64, device=place.device)
    place.settle()
    name = f"decode-{secrets.token_hex(8)}"
    agent = UcxAgent(name, progress=True)
    region = place.memory(landing)
    begin = time.perf_counter()
    agent.register(region)
    registered_s = time.perf_counter() - begin
    warm_up(place, landing, blocks, sums)
    send(sock, describe(name, EPOCH, region, Memory(0, 0), agent.metadata()))
    send(sock, json.dumps({"register_ms": registered_s * 1e3, "gib": region.length / 2**30}).encode())
    while True:
        kind, count = WORD.unpack(receive(sock, WORD.size))
        if kind == END:
            break
        scatter_arrivals(place, count, sock, landing, blocks, sums if kind == CHECKED else None)
        place.settle()
        sock.sendall(DONE)
        if kind == CHECKED:
            send(sock, sums[:count].cpu().numpy().tobytes())
            sums.zero_()
    send(sock, json.dumps(scatter_times(place, landing, blocks, sums)).encode())


def warm_up(place: Place, landing: torch.Tensor, blocks: torch.Tensor, sums: torch.Tensor) -> None:
    """Every variant of the kernel that is met later: Triton compiles first units of 1 and multiples of 16 apart."""
    per_block = place.pool[0].numel()
    for first in (0, 1, 2, 16):
        if first < place.blocks:
            for checksums in (sums[first:], None):
                stream = landing[first * per_block :]
                scatter_kv(stream, place.pool, blocks, BLOCK_TOKENS, first, place.blocks, checksums)
    sums.zero_()
    place.settle()


def scatter_arrivals(
    place: Place,
    count: int,
    sock: socket.socket,
    landing: torch.Tensor,
    blocks: torch.Tensor,
    sums: torch.Tensor | None,
) -> None:
    """Scatter whatever has arrived, as often as something new has, until `count` blocks have."""
    per_block, done, pending = place.pool[0].numel(), 0, bytearray()
    while done < count:
        pending += sock.recv(1 << 16)
        whole = len(pending) // WORD.size * WORD.size
        if not whole:
            continue
        _, arrived = WORD.unpack(pending[whole - WORD.size : whole])
        del pending[:whole]
        stream = landing[done * per_block : arrived * per_block]
        checksums = None if sums is None else sums[done:arrived]
        scatter_kv(stream, place.pool, blocks, BLOCK_TOKENS, done, arrived, checksums)
        done = arrived


def scatter_times(
    place: Place, landing: torch.Tensor, blocks: torch.Tensor, sums: torch.Tensor
) -> dict[str, dict[str, float]]:
    """The scatter of all blocks, alone: milliseconds and GB/s of payload."""
    found: dict[str, dict[str, float]] = {}
    for name, out in (("checksums", sums), ("plain", None)):

        def scatter(out: torch.Tensor | None = out) -> None:
            scatter_kv(landing, place.pool, blocks, BLOCK_TOKENS, 0, place.blocks, out)

        taken = timed(place, scatter)
        found[f"{place.blocks} blocks, {name}"] = {"ms": taken * 1e3, "gb_s": place.pool.nbytes / taken / 1e9}
    return found


def timed(place: Place, call: Callable[[], object], repeats: int = 20) -> float:
    """Median seconds of a call, after three to warm up; by events on a GPU."""
    times: list[float] = []
    for number in range(repeats + 3):
        if place.device.type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            call()
            end.record()
            end.synchronize()
            taken = start.elapsed_time(end) / 1e3
        else:
            begin = time.perf_counter()
            call()
            taken = time.perf_counter() - begin
        if number >= 3:
            times.append(taken)
    return median(times)


# The prefill worker ---------------------------------------------------------------------------------------------------


def bare_rate(place: Place, agent: UcxAgent, source: Memory, target: UcxDescriptor, size: int) -> dict[str, float]:
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


def rate_of(place: Place, source: Memory, target: UcxDescriptor, size: int) -> Callable[[UcxAgent], dict[str, float]]:
    return lambda agent: bare_rate(place, agent, source, target, size)


async def hand_over(
    place: Place, writer: UcxWriter, sock: socket.socket, kind: int, order: list[int], in_flight: int, put_blocks: int
) -> tuple[float, float, torch.Tensor | None]:
    """One hand-over of these blocks: seconds until all PUTs were done, and until all was scattered; D's checksums."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    done, posted, contiguous, count = set[int](), 0, 0, len(order)
    size, pool = place.block_bytes, place.memory(place.pool)

    def post() -> None:
        nonlocal posted
        if posted == count:
            return
        block, posted = posted, posted + put_blocks
        source = [Extent(each * size, size) for each in order[block:posted]]
        landing = (Extent(block * size, put_blocks * size),)
        writer.copy(pool, source, landing, lambda detail: arrived(block, detail))

    def arrived(block: int, detail: str | None) -> None:
        nonlocal contiguous
        if detail is not None:
            raise SystemExit(detail)
        done.add(block)
        before = contiguous
        while contiguous in done:
            contiguous += put_blocks
        post()
        if contiguous != before:
            sock.sendall(WORD.pack(kind, contiguous))
        if len(done) * put_blocks == count:
            ended.set_result(None)

    begin = time.perf_counter()
    sock.sendall(WORD.pack(kind, count))
    for _ in range(in_flight):
        post()
    await ended
    put_s = time.perf_counter() - begin
    receive(sock, len(DONE))
    whole_s = time.perf_counter() - begin
    if kind == PLAIN:
        return put_s, whole_s, None
    raw = receive_message(sock)
    sums = torch.frombuffer(bytearray(raw), dtype=torch.int64).view(count, place.layers, 2)
    return put_s, whole_s, sums


async def prefill(place: Place, sock: socket.socket) -> dict[str, Any]:
    place.enter()
    place.pool.normal_()
    place.settle()
    target = unpack(receive_message(sock), EPOCH, place.pool.nbytes)
    landing_facts = json.loads(receive_message(sock))
    source = place.memory(place.pool)

    def make() -> UcxAgent:
        place.enter()
        agent = UcxAgent(f"prefill-{secrets.token_hex(8)}", progress=False)
        agent.register(source)
        return agent

    thread = UcxThread(make)
    await thread.start(120.0)
    begin = time.perf_counter()
    lane = await thread.run(connect(target), 60.0)
    connected_ms = (time.perf_counter() - begin) * 1e3
    here, there = socket.socketpair()
    writer = UcxWriter(thread, target, Connection(here), lambda _: True, print, lane)
    puts = []
    for size in place.sizes:
        if size > place.pool.nbytes:
            continue
        puts.append(await thread.run(rate_of(place, source, target, size), 120.0))
        print(puts[-1], flush=True)
    handovers: dict[str, dict[str, float]] = {}
    for kind, halves, in_flight, put_blocks in HANDOVERS:
        size, count = put_blocks * place.block_bytes, place.blocks * halves // 2
        name = f"{'checksums' if kind == CHECKED else 'plain'}, {in_flight} PUTs of {size:,} bytes in flight"
        name += f", {count * place.block_bytes:,} bytes in all"
        times = []
        table = torch.randperm(place.blocks, generator=torch.Generator().manual_seed(2))[:count]
        order, blocks = table.tolist(), table.to(torch.int32).to(place.device)
        for _ in range(place.rounds + 2):
            place.pool.normal_()
            expected = kv_checksums(place.pool, blocks, BLOCK_TOKENS, 0, count).cpu() if kind == CHECKED else None
            place.settle()
            put_s, whole_s, sums = await hand_over(place, writer, sock, kind, order, in_flight, put_blocks)
            if expected is not None and (sums is None or not torch.equal(sums, expected)):
                raise SystemExit("checksums differ")
            times.append((put_s, whole_s))
        payload = count * place.block_bytes
        put_s, whole_s = (median(column) for column in zip(*times[2:], strict=True))
        handovers[name] = {
            "bytes": payload,
            "put_gb_s": payload / put_s / 1e9,
            "landed_and_scattered_gb_s": payload / whole_s / 1e9,
            "ms": whole_s * 1e3,
        }
        print(name, handovers[name], flush=True)
    blocks = torch.arange(place.blocks, dtype=torch.int32, device=place.device)
    sums_s = timed(place, lambda: kv_checksums(place.pool, blocks, BLOCK_TOKENS, 0, place.blocks))
    sock.sendall(WORD.pack(END, 0))
    result = {
        "machine": this_machine().as_json(),
        "device": "cpu" if place.device.type == "cpu" else torch.cuda.get_device_name(place.device),
        "lane": lane(),
        "connect_ms": connected_ms,
        "landing": landing_facts,
        "puts": puts,
        "handovers": handovers,
        "scatter_alone": json.loads(receive_message(sock)),
        "prefill_checksums_alone": {"ms": sums_s * 1e3, "gb_s": place.pool.nbytes / sums_s / 1e9},
    }
    writer.close("done")
    there.close()
    await thread.stop()
    return result


# Between them ---------------------------------------------------------------------------------------------------------


def send(sock: socket.socket, data: bytes) -> None:
    sock.sendall(len(data).to_bytes(8) + data)


def receive(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = sock.recv(size - len(data))
        if not more:
            raise SystemExit("the other side is gone")
        data += more
    return bytes(data)


def receive_message(sock: socket.socket) -> bytes:
    return receive(sock, int.from_bytes(receive(sock, 8)))


def main() -> None:
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    cpu = "--cpu" in sys.argv
    if sys.argv[1:2] == ["decode"]:
        decode(Place(cpu, 1), socket.socket(fileno=int(sys.argv[2])))
        return
    here, there = socket.socketpair()
    command = [sys.executable, "-m", "bench.gpu_transfer", "decode", str(there.fileno()), *(["--cpu"] if cpu else [])]
    other = subprocess.Popen(command, pass_fds=[there.fileno()])
    there.close()
    here.settimeout(120.0)
    out = Path(sys.argv[sys.argv.index("--out") + 1]) if "--out" in sys.argv else None
    try:
        result = json.dumps(asyncio.run(prefill(Place(cpu, 0), here)), indent=1)
        print(result, flush=True)
        if out is not None:
            out.write_text(result + "\n")
        here.close()
        other.wait(30)
    finally:
        other.kill()


if __name__ == "__main__":
    main()
