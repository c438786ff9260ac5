"""The memory of this machine's GPUs, shared out among the workers of a deployment before any starts. Pure, but for the
reading of `nvidia-smi`.

A worker alone on its GPUs takes a share of what is free once its weights are loaded. Workers that share a GPU would
each take that share of the same memory, so they get a fixed size for their KV.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from baton_control.spec.api import LLMDeployment
from baton_control.spec.served_model import Dtype
from baton_control.worker_specs import Device, pool_roles, pool_spec
from baton_engine.model.servable import servable_weights
from baton_engine.model.tensor_headers import weight_bytes
from baton_local.errors import StartError
from baton_local.fleet.degree_check import model_degrees
from baton_local.fleet.gpu_placement import least_taken
from baton_local.text_table import gigabytes
from baton_wire.messages.values import POOL_ROLES, Role
from baton_worker.building.block_budget import CUDA_MEMORY_SHARE

FIELDS = ("index", "uuid", "memory.free", "memory.total", "name", "driver_version")
SMI = "nvidia-smi"
QUERY_S = 10.0
CONTEXT_BYTES = 600 << 20
"""Memory that a process takes on a GPU before its first weight: the CUDA context and the libraries' workspaces."""
RANK_BYTES = CONTEXT_BYTES + (80 << 20)
"""More memory on each GPU of a worker with several ranks: what its own process takes besides the rank's, and the region
by which the ranks exchange tensors."""
LEAST_KV_BYTES = 64 << 20
ELEMENT_BYTES: Mapping[str, int] = {Dtype.FLOAT32: 4, Dtype.BFLOAT16: 2, Dtype.FLOAT16: 2}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine."""

    index: str
    uuid: str
    free_bytes: int | None
    """None: the driver does not say, as of `total_bytes`."""
    total_bytes: int | None
    name: str
    driver: str


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """The memory that one worker needs on its GPUs at least, and the workers of each pool."""

    weights: int
    """Bytes of the whole model."""
    dtype: str
    first: Mapping[Role, int]
    """Workers that start at once, by pool; pools on CPUs are missing."""
    most: Mapping[Role, int]
    """Workers that may run at the same time."""
    kv: Mapping[Role, int | None]
    """Bytes of KV that each worker takes by its flags, on all its GPUs; None: it chooses."""
    ranks: Mapping[Role, int] = field(default_factory=dict)
    """Ranks of each worker, 1 where a pool is missing. Each has a GPU with its share of the weights and of the KV."""
    embeddings: int = 0
    """Bytes of the weights that each rank holds again."""
    degrees: tuple[int, ...] = (1,)
    """Numbers of ranks that can share the model."""

    def degree(self, role: Role) -> int:
        """The ranks of a pool's workers."""
        return self.ranks.get(role, 1)

    def weights_at(self, role: Role) -> int:
        """The bytes of the weights on each GPU of a worker."""
        shared = self.weights - self.embeddings if self.degree(role) > 1 else self.weights
        return -(-shared // self.degree(role)) + self.weights - shared

    def extra_at(self, role: Role) -> int:
        """The bytes besides weights and KV on each GPU of a worker."""
        return CONTEXT_BYTES if self.degree(role) == 1 else CONTEXT_BYTES + RANK_BYTES

    def kv_at(self, role: Role) -> int:
        """The bytes of KV on each GPU of a worker, as far as its flags say."""
        return -(-(self.kv[role] or 0) // self.degree(role))

    def least_at(self, role: Role) -> int:
        """The bytes on each GPU of a worker at least."""
        return self.weights_at(role) + self.extra_at(role) + self.kv_at(role)


def read_gpus() -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi` lists; none where it is missing, fails or does not answer in time."""
    try:
        return query_gpus()
    except OSError:
        return ()


def query_gpus() -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi` lists; none where it fails. Raises OSError: it is missing, or too slow."""
    return parse_gpus(query_nvidia_smi(FIELDS))


def query_nvidia_smi(fields: Sequence[str]) -> str:
    """The lines that `nvidia-smi` prints of these fields, one for each GPU, or what it prints when it fails. Raises
    OSError: it is missing, or does not answer in time."""
    command = (SMI, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=QUERY_S, check=False).stdout
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{SMI}: no answer within {QUERY_S:g} s") from error


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs in the answer of `nvidia-smi`; a line of another form is left out."""
    gpus = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == len(FIELDS):
            index, uuid, free, total, name, driver = parts
            free_bytes, total_bytes = (int(size) << 20 if size.isdecimal() else None for size in (free, total))
            gpus.append(Gpu(index, uuid, free_bytes, total_bytes, name, driver))
    return tuple(gpus)


def free_by_id(ids: Sequence[str], gpus: Sequence[Gpu], has_pci_order: bool) -> dict[str, int | None]:
    """The free memory of each GPU as CUDA_VISIBLE_DEVICES names it; None: not known, as for a part of a GPU.

    CUDA counts the fastest GPU first unless `has_pci_order`, and `nvidia-smi` counts by the bus: where the GPUs differ,
    an index may be any of them, and counts as the one with the most free memory.
    """
    known = [gpu.free_bytes for gpu in gpus if gpu.free_bytes is not None]
    is_ordered = has_pci_order or len({gpu.name for gpu in gpus}) == 1
    free: dict[str, int | None] = {}
    for name in ids:
        named = [gpu for gpu in gpus if gpu.index == name or (len(name) > len("GPU-") and gpu.uuid.startswith(name))]
        if named and name == named[0].index and not is_ordered:
            free[name] = max(known) if len(known) == len(gpus) else None
        else:
            free[name] = named[0].free_bytes if len(named) == 1 else None
    return free


def gpu_need(deployment: LLMDeployment, model: Path, devices: Mapping[Role, Device]) -> GpuNeed | None:
    """The need of the workers on GPUs; None: not known, because layers are offloaded. Raises ModelError."""
    config, headers = servable_weights(model)
    dtype = deployment.spec.model.dtype
    name = str(config.dtype or Dtype.BFLOAT16) if dtype is Dtype.AUTO else str(dtype)
    pools = {role: pool_spec(deployment, role) for role in pool_roles(deployment) if devices[role] is Device.CUDA}
    if any(pool.engine.offloaded_layers for pool in pools.values()):
        return None
    size = ELEMENT_BYTES.get(name, 2)
    return GpuNeed(
        weight_bytes(headers, config, size),
        name,
        {role: max(1, pool.replicas.min) for role, pool in pools.items()},
        {role: max(1, pool.replicas.min, pool.replicas.max) for role, pool in pools.items()},
        {role: pool.engine.kv_cache_memory for role, pool in pools.items()},
        {role: pool.tensor_parallel for role, pool in pools.items()},
        config.vocab_size * config.hidden_size * size,
        model_degrees(config),
    )


def workers_by_gpu(workers: Mapping[Role, int], ids: Sequence[str], ranks: Mapping[Role, int]) -> dict[str, list[Role]]:
    """The workers of each GPU: each takes as many as it has ranks, with the fewest workers; prefill workers first."""
    placed: dict[str, list[Role]] = {name: [] for name in ids}
    for role in POOL_ROLES:
        for _ in range(workers.get(role, 0)):
            counts = {name: len(roles) for name, roles in placed.items()}
            for name in least_taken(ids, counts, ranks.get(role, 1)):
                placed[name].append(role)
    return placed


def check_gpus(need: GpuNeed, free: Mapping[str, int | None]) -> None:
    """Raises StartError when the workers that start at once do not fit on a GPU whose free memory is known."""
    for name, roles in workers_by_gpu(need.first, list(free), need.ranks).items():
        room = free[name]
        if room is None or sum(map(need.least_at, roles)) <= room:
            continue
        kv = sum(map(need.kv_at, roles))
        weights, extra = [need.weights_at(role) for role in roles], [need.extra_at(role) for role in roles]
        asked = f" and {gigabytes(kv)} for KV" if kv else ""
        shared = "; each worker holds a copy" if len(roles) > 1 else ""
        raise StartError(
            f"GPU {name}: its workers need {_in_words(weights)} for weights in {need.dtype}, "
            f"{_in_words(extra, each=True)} for CUDA{asked}, and {gigabytes(room)} are free{shared}; "
            f"stop what else uses the GPU (`nvidia-smi` lists it),{_more_ranks(need, free)} or serve a smaller "
            "model, or one quantised by `baton quantise`"
        )


def _in_words(sizes: Sequence[int], *, each: bool = False) -> str:
    """The sizes of several workers in words."""
    if len(set(sizes)) > 1:
        return " + ".join(map(gigabytes, sizes))
    if each:
        return f"{gigabytes(sizes[0])} each"
    return f"{len(sizes)} × {gigabytes(sizes[0])}" if len(sizes) > 1 else gigabytes(sizes[0])


def _more_ranks(need: GpuNeed, free: Mapping[str, int | None]) -> str:
    """The number of ranks in each pool with which the workers would fit on these GPUs; empty where none is known."""
    for degree in need.degrees:
        ranked = replace(need, ranks=dict.fromkeys(need.first, degree))
        placed = workers_by_gpu(need.first, list(free), ranked.ranks)
        if degree <= len(free) and all(
            (room := free[name]) is not None and sum(map(ranked.least_at, roles)) <= room
            for name, roles in placed.items()
        ):
            shared = f"share each model out over {degree} GPUs" if degree > 1 else "keep each model on one GPU"
            return f" or {shared} (tensorParallel, `--tensor-parallel {degree}`),"
    return ""


def shared_kv(need: GpuNeed, free: Mapping[str, int | None]) -> int | None:
    """The bytes of KV for each rank where several workers share a GPU and choose themselves; None: none needs a size.

    Counted for as many workers as may run at the same time, each with an equal part of its GPU.
    """
    sizes = []
    for name, roles in workers_by_gpu(need.most, list(free), need.ranks).items():
        room, open_roles = free[name], [role for role in roles if need.kv[role] is None]
        if room is None or len(roles) < 2 or not open_roles:
            continue
        left = room - sum(map(need.least_at, roles))
        sizes.append(max(LEAST_KV_BYTES, int(left * CUDA_MEMORY_SHARE) // len(open_roles)))
    return min(sizes, default=None)


def with_kv(deployment: LLMDeployment, need: GpuNeed, size: int) -> LLMDeployment:
    """The deployment with this size of KV for each rank, in each pool on GPUs that has none."""
    pools = {}
    for role, kv in need.kv.items():
        if kv is None:
            pool = pool_spec(deployment, role)
            pools[role.value] = pool.model_copy(
                update={"engine": pool.engine.model_copy(update={"kv_cache_memory": size * need.degree(role)})}
            )
    return deployment.model_copy(update={"spec": deployment.spec.model_copy(update=pools)})
