"""What the worker's device could do at most, by its maker's data sheet."""

from __future__ import annotations

import torch

from baton_wire.rules.hardware import Peak, peak_of


def peak(device: torch.device, dtype: torch.dtype) -> Peak | None:
    """None where it is not known: CPUs, other devices, and float32."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    return peak_of(torch.cuda.get_device_name(device))
