"""Memory that several processes map, and a KV pool in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from baton_engine.memory.kv_pool import KvPool
from baton_engine.memory.shared_memory import SharedMemory
from baton_wire.kv_shape import KvGeometry, Units

CPU = torch.device("cpu")
GEOMETRY = KvGeometry(3, 2, 8, 4, 16)
BLOCKS = 12


def pool_in(memory: SharedMemory) -> KvPool:
    return KvPool(GEOMETRY, BLOCKS, torch.float32, CPU, memory=memory.bytes)


def test_two_maps_of_one_memory_show_the_same_pool_and_checksums() -> None:
    memory = SharedMemory.create("kv", BLOCKS * GEOMETRY.block_bytes)
    other = SharedMemory(os.dup(memory.descriptor), memory.size)
    first, second = pool_in(memory), pool_in(other)
    assert not first.tensor.any()
    first.tensor.copy_(torch.randn(first.tensor.shape))
    units = Units([3, 1], 16, 0, 2, GEOMETRY.whole)
    assert torch.equal(first.tensor, second.tensor)
    assert first.checksums(units) == second.checksums(units)
    stream = memoryview(bytearray(2 * GEOMETRY.block_bytes))
    first.pack(units, stream)
    second.scatter(stream, Units([7, 8], 16, 0, 2, GEOMETRY.whole))
    assert torch.equal(first.tensor[[7, 8]], first.tensor[[3, 1]])
    memory.close_descriptor()
    other.close_descriptor()


def test_a_child_writes_into_the_pool_of_its_parent() -> None:
    memory = SharedMemory.create("kv", BLOCKS * GEOMETRY.block_bytes)
    pool = pool_in(memory)
    program = f"import mmap; mmap.mmap({memory.descriptor}, {memory.size})[:4] = b'\\0\\0\\x80\\x3f'"
    subprocess.run([sys.executable, "-c", program], pass_fds=[memory.descriptor], check=True, timeout=60)
    memory.close_descriptor()
    assert pool.tensor.view(-1)[:2].tolist() == [1.0, 0.0]


def test_memory_leaves_nothing_in_dev_shm_and_no_descriptor_once_closed() -> None:
    shown = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
    before = set(os.listdir("/proc/self/fd"))
    memory = SharedMemory.create("kv", 4096)
    memory.close_descriptor()
    memory.bytes[:1] = b"x"
    memory.bytes.close()
    assert set(os.listdir("/proc/self/fd")) == before
    assert (set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()) == shown


def test_memory_that_the_machine_lacks_is_refused() -> None:
    with pytest.raises(MemoryError, match=f"{1 << 60} bytes of shared memory"):
        SharedMemory.create("kv", 1 << 60)


def test_a_pool_refuses_memory_that_is_too_small() -> None:
    memory = SharedMemory.create("kv", BLOCKS * GEOMETRY.block_bytes - 1)
    with pytest.raises(ValueError, match=r"memory: \d+ bytes hold no 12 blocks"):
        pool_in(memory)
    memory.close_descriptor()


def test_other_threads_run_while_memory_is_mapped() -> None:
    """A rank that maps a large pool still gives signs of life."""
    beats: list[float] = []
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.001):
            beats.append(time.monotonic())

    def has_run() -> bool:
        """True when the thread ran in the middle of a mapping."""
        began_s = time.monotonic()
        memory = SharedMemory.create("kv", 64 << 20)
        quarter_s = (time.monotonic() - began_s) / 4
        memory.close_descriptor()
        memory.bytes.close()
        return any(began_s + quarter_s < beat_s < began_s + 3 * quarter_s for beat_s in tuple(beats))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        end_s = time.monotonic() + 60.0
        while not (ran := has_run()) and time.monotonic() < end_s:
            beats.clear()
    finally:
        over.set()
        thread.join(60)
    assert ran
