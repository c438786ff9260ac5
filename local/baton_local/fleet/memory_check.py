"""Compares the memory of the workers that start at once with what this machine has, before any starts."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from baton_control.spec.api import LLMDeployment
from baton_control.spec.served_model import Dtype
from baton_control.worker_specs import Device, pool_spec
from baton_engine.model.servable import servable_weights
from baton_engine.model.tensor_headers import weight_bytes
from baton_local.errors import StartError
from baton_local.text_table import gigabytes
from baton_wire.messages.values import POOL_ROLES, Role
from baton_worker.building.memory_limit import free_bytes

ELEMENT_BYTES: Mapping[Dtype, int] = {Dtype.AUTO: 4, Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2, Dtype.FLOAT16: 2}
"""On a CPU, where `auto` is float32."""

RANK_PROCESS_BYTES = 250 << 20
"""Memory of a rank process before its first weight: Python and torch."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """The memory that the workers of both pools need at least."""

    workers: int
    """Workers on the CPU that start at once."""
    weights: int
    """Bytes of the weights in each of them, over all its ranks: no two workers share a copy."""
    kv: int
    """Bytes of KV that all of them together take by their flags; what they choose themselves always fits."""
    dtype: str
    repeated: int = 0
    """Bytes that ranks take besides: embeddings that each holds again, and their processes."""
    largest: int | None = None
    """Bytes of the weights in the largest process; None: each worker is one process."""

    @property
    def total(self) -> int:
        return self.workers * self.weights + self.repeated + self.kv


def memory_need(deployment: LLMDeployment, model: Path, devices: Mapping[Role, Device]) -> MemoryNeed:
    """The need of the workers on the CPU; `gpu_room` checks those on GPUs. Raises ModelError."""
    config, headers = servable_weights(model)
    workers = kv = repeated = largest = 0
    dtype = deployment.spec.model.dtype
    weights = weight_bytes(headers, config, ELEMENT_BYTES[dtype])
    embeddings = config.vocab_size * config.hidden_size * ELEMENT_BYTES[dtype]
    for role in POOL_ROLES:
        pool = pool_spec(deployment, role)
        if devices[role] is Device.CPU:
            count, ranks = min(max(1, pool.replicas.min), pool.replicas.max), pool.tensor_parallel
            workers += count
            kv += count * (pool.engine.kv_cache_memory or 0)
            if ranks > 1:
                repeated += count * ((ranks - 1) * embeddings + ranks * RANK_PROCESS_BYTES)
            largest = max(largest, (weights - embeddings) // ranks + embeddings)
    name = str(Dtype.FLOAT32 if dtype is Dtype.AUTO else dtype)
    return MemoryNeed(workers, weights, kv, name, repeated, largest)


def check_memory(need: MemoryNeed, free: int, address_space: int | None) -> None:
    """Raises StartError when the workers cannot fit. `address_space`: of each process; None: unlimited."""
    largest = need.weights if need.largest is None else need.largest
    if address_space is not None and largest > address_space:
        raise StartError(
            f"a worker needs {gigabytes(largest)} for its weights in {need.dtype}, and a process may have "
            f"{gigabytes(address_space)} (ulimit -v){_ways(need)}"
        )
    if need.total <= free:
        return
    count = f"{need.workers} × " if need.workers > 1 else ""
    kv = f", {gigabytes(need.repeated)} for ranks" if need.repeated else ""
    kv += f" and {gigabytes(need.kv)} for KV" if need.kv else ""
    copies = ": each worker holds a copy" if need.workers > 1 else ""
    raise StartError(
        f"the workers need {count}{gigabytes(need.weights)} for weights in {need.dtype}{kv}, "
        f"{gigabytes(free)} are free{copies}{_ways(need)}"
    )


def _ways(need: MemoryNeed) -> str:
    half = "--dtype bfloat16 (spec.model.dtype) halves it, " if need.dtype == Dtype.FLOAT32 else ""
    return f"; {half}`baton quantise --format int8` or int4 saves more, and a smaller model needs less"


def free_memory() -> int:
    """Bytes that processes on this machine can still get, within the limits of this one's control groups."""
    return free_bytes(Device.CPU)


def address_space_limit() -> int | None:
    """The limit of a process's address space; None: there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
