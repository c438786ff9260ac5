"""What the worker's device could do at most, from the makers' data sheets: the denominators of MFU and MBU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch


@dataclass(frozen=True, slots=True)
class Peak:
    flops: float
    """Dense products in bf16 or fp16, FLOP/s, without sparsity."""
    bytes_per_s: float


PEAKS: Final = {
    "B200": Peak(2250e12, 8.0e12),
    "H200": Peak(989.4e12, 4.8e12),
    "H100 80GB HBM3": Peak(989.4e12, 3.35e12),
    "H100 PCIe": Peak(756e12, 2.0e12),
    "A100-SXM4-80GB": Peak(312e12, 2.039e12),
    "A100 80GB PCIe": Peak(312e12, 1.935e12),
    "L40S": Peak(362e12, 0.864e12),
}
"""By a part of the name that the driver gives the device."""


def peak(device: torch.device, dtype: torch.dtype) -> Peak | None:
    """None where it is not known: CPUs, other devices, and float32."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> Peak | None:
    """By the driver's name of a device, such as "NVIDIA H200"."""
    return next((found for part, found in PEAKS.items() if part in name), None)
