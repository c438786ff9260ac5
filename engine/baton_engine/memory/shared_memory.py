"""Memory without a name that several processes map: a worker makes it and gives its descriptor to its children.

It is gone when the last process that has it ends, however that happens. It is no file of /dev/shm, whose size a
container limits.
"""

from __future__ import annotations

import mmap
import os
from typing import Self

import numpy as np


class SharedMemory:
    """`size` bytes, zero at first and present already: nothing that uses them is the first to touch a page."""

    def __init__(self, descriptor: int, size: int) -> None:
        """Map the memory of this descriptor, and own the descriptor. Raises MemoryError where it cannot be mapped."""
        self.descriptor, self.size = descriptor, size
        try:
            self.bytes = mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED)
        except (OSError, OverflowError, ValueError) as error:
            os.close(descriptor)
            raise MemoryError(f"{size} bytes of shared memory cannot be mapped") from error
        # Not by MAP_POPULATE: `mmap` keeps the interpreter meanwhile, and a rank could not give signs of life.
        np.frombuffer(self.bytes, dtype=np.uint8)[:: mmap.PAGESIZE].max()

    @classmethod
    def create(cls, name: str, size: int) -> Self:
        """Make new memory. `name` is shown in /proc alone. Raises MemoryError for more than the machine has: the system
        would not refuse it, but look for a process to kill."""
        return cls.grow(reserve_memory(name), size)

    @classmethod
    def grow(cls, descriptor: int, size: int) -> Self:
        """Make new memory of a reserved descriptor, which other processes may have already. Raises MemoryError as
        `create` does."""
        most = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
        if size > most:
            os.close(descriptor)
            raise MemoryError(f"{size} bytes of shared memory: the machine has {most}")
        os.ftruncate(descriptor, size)
        return cls(descriptor, size)

    def close_descriptor(self) -> None:
        """Close the descriptor, once no further process gets it. The bytes stay mapped as long as they are used, and
        with them a descriptor of Python's own."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def reserve_memory(name: str) -> int:
    """The descriptor of memory that is empty until it is grown: its size may be known after its processes start."""
    return os.memfd_create(name, os.MFD_CLOEXEC)
