"""Bring host arrays to the device without making the host wait."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def upload(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A fresh host array on the device, in stream order. On a CPU it is the same memory: do not change the array."""
    return on_device(torch.from_numpy(array), device)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The same of a tensor of the host, which may be changed afterwards unless the device is a CPU."""
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
