"""Speeds and sizes of accelerators: figures with their source; nothing is probed.

Two kinds of figures: `Peak`s are the makers' data sheets, the denominators of MFU and MBU. `Accelerator`s are what
sustained load reaches, and sizing plans with these. `H200` is measured (docs/sizing.md lists each run); other entries
scale data sheets by the same efficiencies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from baton_wire.rules.all_reduce import NVLINK_3, NVLINK_4, SHARED_MEMORY, AllReduceTimes


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One accelerator under sustained load, not its data sheet."""

    name: str
    dense_flops: float
    """Matrix products in the serving dtype, FLOP/s."""
    attention_flops: float
    """Causal prefill attention, FLOP/s."""
    weight_bytes_per_s: float
    """Reading weights in a decode step: small products reach less than a plain copy does."""
    kv_bytes_per_s: float
    """Reading paged KV in decode attention."""
    memory_bytes: float
    memory_share: float = 0.9
    """Share of the memory that weights and KV may take together."""
    link_bytes_per_s: float = 50e9
    """KV from one prefill worker to a decode worker (one 400 Gb/s NIC)."""
    all_reduce: AllReduceTimes = NVLINK_4
    """Adding up the tensors of a worker's ranks."""
    prefill_step_s: float = 3e-3
    """Per prefill step, whatever its size: launch, sampling, messages."""
    decode_step_s: float = 0.6e-3
    """Per decode step, whatever its batch: norms, sampling, graph launch."""
    cost_per_hour: float = 3.5
    """Currency units; a placeholder for the user's own price."""


H200 = Accelerator(
    name="h200",
    dense_flops=670e12,  # 664–673 in prefill-shaped products; 757 in one 8192³ product
    attention_flops=450e12,  # flash and cuDNN kernels between 4k and 16k
    weight_bytes_per_s=3.76e12,  # 15.01 GB in 3.99 ms at batch 1
    kv_bytes_per_s=4.2e12,  # 4.16–4.54 measured
    memory_bytes=141e9,
)
H100 = Accelerator(
    name="h100",
    dense_flops=640e12,
    attention_flops=430e12,
    weight_bytes_per_s=2.62e12,
    kv_bytes_per_s=2.93e12,
    memory_bytes=80e9,
    cost_per_hour=2.5,
)
A100 = Accelerator(
    name="a100",
    dense_flops=220e12,
    attention_flops=150e12,
    weight_bytes_per_s=1.6e12,
    kv_bytes_per_s=1.75e12,
    memory_bytes=80e9,
    link_bytes_per_s=25e9,
    all_reduce=NVLINK_3,
    cost_per_hour=1.5,
)
CPU = Accelerator(
    name="cpu",
    dense_flops=4e10,
    attention_flops=2e10,
    weight_bytes_per_s=1e10,
    kv_bytes_per_s=4e9,
    memory_bytes=32e9,
    link_bytes_per_s=1e9,
    all_reduce=SHARED_MEMORY,
    prefill_step_s=2e-3,
    decode_step_s=2e-3,
    cost_per_hour=0.05,
)
"""One core; a first guess that measured steps replace."""
ACCELERATORS = {accelerator.name: accelerator for accelerator in (H200, H100, A100, CPU)}


@dataclass(frozen=True, slots=True)
class Peak:
    """Peak figures of one device, from its data sheet."""

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


def peak_of(name: str) -> Peak | None:
    """The peak of the device with this driver name, such as "NVIDIA H200"; None: not known.

    >>> peak_of("NVIDIA H200").bytes_per_s
    4800000000000.0
    """
    return next((peak for part, peak in PEAKS.items() if part in name), None)
