"""Build a worker's engine from its configuration: model, tokenizer bundle, KV pool, runner, scheduler, and who it is.

Everything that can be wrong with a model, a size or a key is found here, before anything listens, as one ConfigError.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from baton_engine.memory.kv_pool import KvPool
from baton_engine.model.errors import ModelError
from baton_engine.model.loading import DTYPES, RANDOM_SCHEME, LoadedModel, load_model
from baton_engine.model.step_cost import CostModel, cost_model
from baton_engine.running.runner import ModelRunner
from baton_engine.running.step_load import StepLoad
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_kernels.kv_scales import KV_FP8
from baton_kv_transfer.handover import TransferConfig, Verify
from baton_kv_transfer.transports.table import TransportChoice, offered
from baton_wire.errors import AuthenticationError
from baton_wire.keys import KeyDirectory
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.gateway_link import Hello
from baton_wire.messages.values import WIRE_VERSION, PairFingerprint, Role
from baton_wire.rules.hardware import Peak
from baton_worker.building import capacity
from baton_worker.building.accelerator import peak
from baton_worker.building.bundle_files import TokenizerBundle, read_bundle
from baton_worker.building.memory_limit import free_bytes
from baton_worker.building.parts import EngineParts
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError
from baton_worker.serving.intake import RequestLimits

log = logging.getLogger(__name__)

CPU_BLOCK_TOKENS = 16
CUDA_BLOCK_TOKENS = 64
CUDA_PUT_BYTES = 64 << 20
"""On a GPU a PUT, its checksums or its copy to the host cost some tenths of a millisecond, whatever they hold."""
CUDA_SCATTER_BYTES = 4 << 30
"""A hand-over up to this is scattered by one kernel. Its time is the memory's: 0.6 ms a GiB."""
CUDA_PORTION_BYTES = 256 << 20
"""A scatter takes 0.6 ms and 0.15 more for these; in 0.75 ms as many arrive. Smaller hand-overs are scattered once."""
CUDA_GROUP_BYTES = 32 << 20
CUDA_GROUPS = 16
"""Layer groups: what is left when the prompt is computed is the last one."""
MAX_CHOICES = 16


@dataclass(frozen=True, slots=True)
class Engine:
    """What computes: a model, its KV pool and the scheduler over them. Knows nothing of links."""

    loaded: LoadedModel
    bundle: TokenizerBundle
    geometry: KvGeometry
    capacity: capacity.Capacity
    pool: KvPool
    scheduler: Scheduler
    runner: ModelRunner
    stepper: Stepper
    limits: RequestLimits
    costs: CostModel
    peak: Peak | None
    stages: dict[str, float]
    """Seconds: weights, pool, runner (graphs captured, kernels compiled)."""


def build(config: WorkerConfig, observe_step: Callable[[int, StepLoad, float], None]) -> EngineParts:
    """Load and size everything. `observe_step` is told each step's number, what was in it, and its seconds.

    Raises ConfigError with one line.
    """
    keys = _keys(config.keys)
    engine = build_engine(config, observe_step)
    engine.pool.warm_up()
    return EngineParts(
        bundle=engine.bundle,
        geometry=engine.geometry,
        capacity=engine.capacity,
        keys=keys,
        pool=engine.pool,
        scheduler=engine.scheduler,
        stepper=engine.stepper,
        limits=engine.limits,
        fingerprint=_fingerprint(engine.loaded, engine.pool.tensor.dtype, engine.bundle),
        watch_layers=engine.runner.watch_layers,
        costs=engine.costs,
        peak=engine.peak,
        stages=engine.stages,
    )


def build_engine(config: WorkerConfig, observe_step: Callable[[int, StepLoad, float], None]) -> Engine:
    """The engine alone, also without a worker around it. Raises ConfigError with one line."""
    device = _device(config)
    torch.set_num_threads(config.threads)
    bundle = read_bundle(_model_directory(config.model))
    asked_dtype = None if config.dtype == "auto" else DTYPES[config.dtype]
    stages = _Stages()
    try:
        loaded = load_model(config.model, asked_dtype, device, config.max_context_tokens)
    except ModelError as error:
        raise ConfigError(f"argument --model: {error}") from error
    stages.ended("weights")
    kv_dtype = KV_FP8 if config.kv_cache_dtype == "fp8" else loaded.dtype
    geometry = _geometry(config, loaded, kv_dtype)
    budget = capacity.kv_budget(config.kv_cache_bytes, free_bytes(config.device), config.device)
    sized = capacity.decide(
        geometry, loaded.max_context_tokens, budget, config.landing_bytes, lands=config.role is Role.DECODE
    )
    pool = KvPool(geometry, sized.blocks, kv_dtype, device, with_checksums=config.verify == Verify.FULL)
    stages.ended("pool")
    engine_config = EngineConfig(
        num_blocks=sized.blocks,
        block_tokens=geometry.block_tokens,
        max_slots=config.max_sequences,
        max_context_tokens=loaded.max_context_tokens,
        max_step_tokens=config.max_step_tokens,
        chunk_tokens=config.chunk_tokens,
        max_waiting=config.max_waiting,
    )
    scheduler = Scheduler(engine_config)
    runner = ModelRunner(loaded, pool, config.max_sequences)
    stepper = Stepper(scheduler, runner, observe_step)
    stages.ended("runner")
    log.info("start-up: %s", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.seconds.items()))
    costs = cost_model(loaded.config, loaded.dtype.itemsize, geometry.element_bytes)
    choices = min(MAX_CHOICES, config.max_sequences)
    log.info("%d blocks of %d tokens, %d landing bytes", sized.blocks, geometry.block_tokens, sized.landing_bytes)
    limits = RequestLimits(loaded.config.vocab_size, loaded.max_context_tokens, choices)
    rated = peak(device, loaded.dtype)
    return Engine(
        loaded, bundle, geometry, sized, pool, scheduler, runner, stepper, limits, costs, rated, stages.seconds
    )


class _Stages:
    """Times the parts of the start, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began_s = time.monotonic()

    def ended(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._began_s = now - self._began_s, now


def hello(config: WorkerConfig, parts: EngineParts, epoch: bytes, pair_port: int | None) -> Hello:
    """How this worker introduces itself to gateways."""
    return Hello(
        role=config.role,
        epoch=epoch,
        fingerprint=parts.fingerprint,
        template_hash=config.template_hash,
        pair_port=pair_port,
        served_name=config.served_name,
        vocab_size=parts.limits.vocab_size,
        max_context_tokens=parts.limits.max_context_tokens,
        max_choices=parts.limits.max_choices,
        block_tokens=parts.geometry.block_tokens,
        blocks_total=parts.capacity.blocks,
        bundle_hash=parts.bundle.sha256,
        bundle_bytes=len(parts.bundle.data),
    )


def transfer_config(config: WorkerConfig) -> TransferConfig:
    """Settings of the worker's side of the KV transfer. Raises ConfigError when this machine lacks what they need."""
    transport = TransportChoice(config.transport)
    try:
        offered(transport)
    except ValueError as error:
        raise ConfigError(f"argument --transport: {error}") from error
    common = TransferConfig(verify=Verify(config.verify), transport=transport, min_bytes_per_s=config.min_bandwidth)
    if config.device != "cuda":
        return common
    at_once = CUDA_PUT_BYTES if config.role is Role.PREFILL else CUDA_SCATTER_BYTES
    return replace(
        common,
        max_put_bytes=at_once,
        portion_bytes=CUDA_PORTION_BYTES,
        group_bytes=CUDA_GROUP_BYTES,
        max_groups=CUDA_GROUPS,
    )


def _keys(path: Path) -> KeyDirectory:
    keys = KeyDirectory(path)
    try:
        keys.current()
    except AuthenticationError as error:
        raise ConfigError(f"argument --keys: {error}") from error
    return keys


def _device(config: WorkerConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("argument --device: cuda: this machine has no usable NVIDIA GPU; allowed here: cpu")
    if config.kv_cache_dtype == "fp8" and config.device != "cuda":
        raise ConfigError(f"argument --kv-cache-dtype: fp8 with --device {config.device}; allowed there: auto")
    return torch.device(config.device)


def _model_directory(model: str) -> Path:
    if model.startswith(RANDOM_SCHEME):
        return Path(model.removeprefix(RANDOM_SCHEME).partition("?")[0]).parent
    directory = Path(model)
    if not directory.is_dir():
        raise ConfigError(f"argument --model: {model}: no such directory")
    return directory


def _geometry(config: WorkerConfig, loaded: LoadedModel, kv_dtype: torch.dtype) -> KvGeometry:
    default_block = CPU_BLOCK_TOKENS if config.device == "cpu" else CUDA_BLOCK_TOKENS
    return KvGeometry(
        layers=loaded.config.num_layers,
        kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        element_bytes=kv_dtype.itemsize,
        block_tokens=config.block_tokens or default_block,
    )


def _fingerprint(loaded: LoadedModel, kv_dtype: torch.dtype, bundle: TokenizerBundle) -> PairFingerprint:
    dtype = str(loaded.dtype).removeprefix("torch.")
    return PairFingerprint(
        wire_version=WIRE_VERSION,
        model_hash=loaded.model_hash,
        dtype=dtype,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        layers=loaded.config.num_layers,
        kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        rope=loaded.config.rope_digest(),
        tokenizer=bundle.sha256,
    )
