"""Memory of a GPU that several processes map, by the driver's interprocess handles.

A handle is of a plain allocation, made by `cudaMalloc`: the driver makes none of other memory, so nothing that is
shared here goes through NVLink multicast. The process that allocated the memory keeps it as long as others map it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Final, Self

import torch
from torch import Tensor

HANDLE_BYTES: Final = 64
_OFFSET_BYTES: Final = 8
_ENABLE_PEER_ACCESS: Final = 1
_LEGACY_IPC_CAPABLE: Final = 10
_ACCESS, _NATIVE_ATOMICS = 2, 3


class DeviceMemoryError(MemoryError):
    """The driver did not share memory of a GPU."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


@dataclass(frozen=True, slots=True)
class DeviceMemoryHandle:
    """A part of an allocation of another process."""

    handle: bytes
    """The driver's, of the whole allocation."""
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """The handle of a contiguous tensor's memory, which its process keeps. Raises DeviceMemoryError for memory that
        is no plain allocation."""
        address, capable = ctypes.c_uint64(tensor.data_ptr()), ctypes.c_int(0)
        _call("cuPointerGetAttribute", ctypes.byref(capable), ctypes.c_int(_LEGACY_IPC_CAPABLE), address)
        if not capable.value:
            raise DeviceMemoryError(
                "the memory is no plain allocation; allowed: memory of cudaMalloc, without multicast"
            )
        base, size, handle = ctypes.c_uint64(), ctypes.c_size_t(), _Handle()
        _call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), address)
        _call("cuIpcGetMemHandle", ctypes.byref(handle), base)
        return cls(ctypes.string_at(ctypes.byref(handle), HANDLE_BYTES), address.value - base.value)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Raises ValueError for another number of bytes."""
        if len(data) != HANDLE_BYTES + _OFFSET_BYTES:
            raise ValueError(f"handle: {len(data)} bytes; must be {HANDLE_BYTES + _OFFSET_BYTES}")
        return cls(data[:HANDLE_BYTES], int.from_bytes(data[HANDLE_BYTES:], "little"))

    def to_bytes(self) -> bytes:
        return self.handle + self.offset.to_bytes(_OFFSET_BYTES, "little")

    def map(self, size: int, device: torch.device) -> Tensor:
        """Map `size` bytes that are on `device` into this process: [size] uint8, as long as the process lives. Raises
        DeviceMemoryError."""
        return torch.as_tensor(_MappedBytes(self.address(device), size))

    def address(self, device: torch.device) -> int:
        """Map the allocation into this process for kernels of `device`, which may be another than holds it. Returns
        where the part begins. Raises DeviceMemoryError."""
        torch.zeros(1, device=device)  # the device's context
        handle, base = _Handle(), ctypes.c_uint64()
        ctypes.memmove(ctypes.byref(handle), self.handle, HANDLE_BYTES)
        with torch.cuda.device(device):
            _call("cuIpcOpenMemHandle_v2", ctypes.byref(base), handle, ctypes.c_uint(_ENABLE_PEER_ACCESS))
        return base.value + self.offset


class _MappedBytes:
    """Bytes at an address as numpy-like libraries exchange them."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def peer_objection(first: int, second: int) -> str | None:
    """The reason why two GPUs of this machine cannot exchange tensors; None when they can."""
    if not torch.cuda.can_device_access_peer(first, second):
        return f"GPUs {first} and {second} cannot reach each other's memory"
    supported = ctypes.c_int(0)
    _call("cuDeviceGetP2PAttribute", ctypes.byref(supported), ctypes.c_int(_NATIVE_ATOMICS), first, second)
    return None if supported.value else f"GPUs {first} and {second} have no atomic operations on each other's memory"


@cache
def _driver() -> ctypes.CDLL:
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuIpcOpenMemHandle_v2.argtypes = (ctypes.POINTER(ctypes.c_uint64), _Handle, ctypes.c_uint)
    driver.cuIpcGetMemHandle.argtypes = (ctypes.POINTER(_Handle), ctypes.c_uint64)
    return driver


def _call(name: str, *arguments: object) -> None:
    driver = _driver()
    status = getattr(driver, name)(*arguments)
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        raise DeviceMemoryError(f"{name}: {(text.value or b'').decode() or f'error {status}'}")
