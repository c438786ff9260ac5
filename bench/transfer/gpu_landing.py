"""The side of `bench gpu_transfer` that bytes come to, what both sides share, and the socket between them."""

from __future__ import annotations

import json
import secrets
import socket
import struct
import time
from typing import Final

import torch

from baton_kernels.kv.kv_copy import scatter_kv
from baton_kernels.kv.kv_units import UnitRange
from baton_kv_transfer.transports.device import MemoryRange
from baton_kv_transfer.transports.ucx.binding import UcxAgent
from baton_kv_transfer.transports.ucx.landing import describe

EPOCH: Final = b"gpu-transfer-run"
LAYERS, KV_HEADS, BLOCK_TOKENS, HEAD_DIM = 32, 8, 64, 128
MESSAGE: Final = struct.Struct("!II")
"""P's message: blocks of the hand-over (0: no more) and how many D scatters at once; then blocks in place and 0."""
STAMPS: Final = struct.Struct("!dd")
"""D's last message: when it heard of the last bytes and when all was scattered; the processes share the clock."""


class Place:
    """A side's device and sizes."""

    def __init__(self, cpu: bool, number: int) -> None:
        self.device = torch.device("cpu") if cpu else torch.device("cuda", number)
        self.layers = 2 if cpu else LAYERS
        self.blocks = 16 if cpu else 256
        """2 GiB of blocks on a GPU."""
        self.sizes = [1 << bits for bits in ((16, 18) if cpu else (19, 20, 22, 23, 24, 25, 26, 28))]
        self.rounds = 2 if cpu else 15
        shape = (self.blocks, self.layers, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM)
        self.pool = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        self.block_bytes = self.pool[0].nbytes

    def memory(self, tensor: torch.Tensor) -> MemoryRange:
        return MemoryRange(tensor.data_ptr(), tensor.nbytes, None if self.device.type == "cpu" else self.device.index)

    def settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def enter(self) -> None:
        """In a thread that calls UCX: it looks for the thread's CUDA context."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            torch.zeros(1, device=self.device)
            torch.cuda.synchronize(self.device)


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
    send(sock, describe(name, EPOCH, region, MemoryRange(0, 0), agent.metadata()))
    send(sock, json.dumps({"register_ms": registered_s * 1e3, "gib": region.length / 2**30}).encode())
    while True:
        count, portion = MESSAGE.unpack(receive(sock, MESSAGE.size))
        if not count:
            break
        heard_s = scatter_arrivals(place, count, portion, sock, landing, blocks, sums)
        place.settle()
        sock.sendall(STAMPS.pack(heard_s, time.perf_counter()))
        send(sock, sums[:count].cpu().numpy().tobytes())


def warm_up(place: Place, landing: torch.Tensor, blocks: torch.Tensor, sums: torch.Tensor) -> None:
    """Every variant of the kernel that is met later: Triton compiles first units of 1 and multiples of 16 apart."""
    per_block = place.pool[0].numel()
    for first in (0, 1, 2, 16):
        if first < place.blocks:
            stream = landing[first * per_block :]
            scatter_kv(stream, place.pool, blocks, UnitRange(BLOCK_TOKENS, first, place.blocks), sums[first:])
    sums.zero_()
    place.settle()


def scatter_arrivals(
    place: Place,
    count: int,
    portion: int,
    sock: socket.socket,
    landing: torch.Tensor,
    blocks: torch.Tensor,
    sums: torch.Tensor,
) -> float:
    """Scatter whatever has arrived, as often as `portion` new blocks have, until `count` have; returns when the last
    had arrived."""
    per_block, done, pending = place.pool[0].numel(), 0, bytearray()
    while True:
        more = sock.recv(1 << 16)
        if not more:
            raise SystemExit("the other side is gone")
        pending += more
        whole = len(pending) // MESSAGE.size * MESSAGE.size
        if not whole:
            continue
        heard_s = time.perf_counter()
        arrived, _ = MESSAGE.unpack(pending[whole - MESSAGE.size : whole])
        del pending[:whole]
        if arrived - done < portion and arrived < count:
            continue
        stream = landing[done * per_block : arrived * per_block]
        scatter_kv(stream, place.pool, blocks, UnitRange(BLOCK_TOKENS, done, arrived), sums[done:arrived])
        done = arrived
        if done == count:
            return heard_s


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
