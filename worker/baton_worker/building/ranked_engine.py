"""Build the engine of a worker with several ranks: the ranks are processes, and this one plans for them. They share
each layer, or are the stages of a pipeline.

This process holds no weights. It maps the memory of every rank's KV pool too, which it makes itself on a CPU and the
rank on a GPU, so that the hand-over and the prefix cache read and write all heads here, without another copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from mmap import mmap
from pathlib import Path

import torch
from torch import Tensor

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import DTYPES, RANDOM_SCHEME, default_dtype
from baton_engine.model.model_directory import read_spec
from baton_engine.model.servable import servable_config
from baton_engine.model.step_cost import cost_model, rank_costs
from baton_engine.ranks.checkpoint_digest import agreed_share
from baton_engine.ranks.rank_frames import KV_DTYPES, LoadShare, MakeRunner, ShareLoaded
from baton_engine.ranks.rank_processes import RankProcesses
from baton_engine.ranks.ranked_runner import RankedRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.step_load import StepLoad
from baton_kv_transfer.handover import Verify
from baton_kv_transfer.ranks.tensor_parallel import rank_geometries
from baton_wire.kv_shape import KvGeometry
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelConfigError, ModelError
from baton_wire.models.sharding.degrees import check_degree
from baton_wire.models.sharding.stages import check_stages
from baton_worker.building import block_budget as capacity
from baton_worker.building.bundle_files import read_bundle
from baton_worker.building.engine import BLOCK_TOKENS, peak_of_device
from baton_worker.building.memory_limit import free_bytes
from baton_worker.building.parts import EngineParts, limits_of, scheduler_of
from baton_worker.building.rank_gpus import rank_gpus
from baton_worker.building.served_model import (
    LoadedFacts,
    StartStages,
    check_quantization,
    config_path,
    device_of,
    fingerprint_of,
    model_directory,
    named_kv_dtype,
    row_masks,
)
from baton_worker.building.tasks import encoding_limits
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError

CPU = torch.device("cpu")


def build(config: WorkerConfig, observe_step: Callable[[int, StepLoad, float], None]) -> EngineParts:
    """Start the ranks, and load and size everything. Raises ConfigError with one line, and RankLostError."""
    device = device_of(config)
    gpus = rank_gpus(config.tensor_parallel) if device.type == "cuda" else ()
    torch.set_num_threads(1)
    bundle = read_bundle(model_directory(config.model))
    stages = StartStages()
    served = _read_model(config)
    ranks, are_stages = config.tensor_parallel * config.pipeline_parallel, config.pipeline_parallel > 1
    with ExitStack() as ended:
        try:
            processes = RankProcesses.start(ranks, are_stages=are_stages)
            ended.callback(processes.close)
            loaded = _load(processes, config, gpus, served.config.num_layers if are_stages else None)
            model_hash, generates = agreed_share(loaded)
            served = replace(served, config=replace(served.config, generates=generates))
            encoding = None if are_stages else encoding_limits(served.config, config.tasks)
            if are_stages and not generates:
                raise ConfigError(
                    f"argument --pipeline-parallel: {ranks}: the model has no head for tokens; allowed for it: 1"
                )
            stages.end("weights")
            geometry = kv_geometry(served.config, served.kv_dtype, config.block_tokens or BLOCK_TOKENS[config.device])
            shapes = rank_geometries(geometry, config.tensor_parallel)
            sized = _size(config, shapes, served.max_context_tokens, _free_bytes(loaded, gpus))
            decodes = config.lands or config.keep_answers
            order = MakeRunner(
                *(sized.blocks, geometry.block_tokens, config.max_sequences, decodes),
                hands_over=config.hands_over,
                kv_dtype=named_kv_dtype(config),
            )
            pools = _make_pools(config, processes, order, served, shapes, gpus)
        except ModelError as error:
            raise ConfigError(f"argument --model: {error}") from error
        except MemoryError as error:
            flag = "pipeline-parallel" if are_stages else "tensor-parallel"
            raise ConfigError(f"argument --{flag}: {ranks}: {error}") from error
        stages.end("ranks")
        for pool in pools if gpus else pools[:1]:
            pool.warm_up()
        stages.end("hand-over")
        masks = row_masks(bundle, served.config.vocab_size, config.max_sequences, CPU)
        scheduler = scheduler_of(config, pools[0], served.max_context_tokens, masks)
        runner = RankedRunner(processes, masks, are_stages=are_stages)
        ended.pop_all()
    return EngineParts(
        bundle=bundle,
        geometry=geometry,
        pools=pools,
        landing_bytes=sized.landing_bytes,
        scheduler=scheduler,
        stepper=Stepper(scheduler, runner, observe_step, config.pipeline_parallel),
        limits=limits_of(config, served.config.vocab_size, served.max_context_tokens, encoding=encoding),
        fingerprint=fingerprint_of(served, model_hash, geometry, bundle),
        watch_layers=runner.watch_layers,
        masks=masks,
        costs=cost_model(served.config, served.dtype.itemsize, geometry.element_bytes),
        peak=peak_of_device(torch.device("cuda", gpus[0]), served.dtype) if gpus else None,
        rank_costs=rank_costs(served.config, config.tensor_parallel, served.dtype.itemsize, geometry.element_bytes),
        stages=stages.seconds,
        watch_loss=processes.watch_loss,
        close=processes.close,
    )


def _read_model(config: WorkerConfig) -> LoadedFacts:
    """The model as its files describe it, without its weights. Raises ConfigError."""
    try:
        check_quantization(config)
        spec = _read_spec(config.model)
        context = spec.context_within(config.max_context_tokens)
    except ModelError as error:
        raise ConfigError(f"argument --model: {error}") from error
    try:
        check_degree(spec, config.tensor_parallel)
    except ModelConfigError as error:
        raise ConfigError(f"argument --tensor-parallel: {error}") from error
    try:
        check_stages(spec, config.pipeline_parallel)
    except ModelConfigError as error:
        raise ConfigError(f"argument --pipeline-parallel: {error}") from error
    dtype = default_dtype(spec, torch.device(config.device)) if config.dtype == "auto" else DTYPES[config.dtype]
    named = named_kv_dtype(config)
    return LoadedFacts(spec, dtype, dtype if named is None else KV_DTYPES[named], context)


def _read_spec(model: str) -> DecoderSpec:
    return servable_config(config_path(model)) if model.startswith(RANDOM_SCHEME) else read_spec(Path(model))


def _load(
    processes: RankProcesses, config: WorkerConfig, gpus: tuple[int, ...], layers: int | None
) -> list[ShareLoaded]:
    """Let the ranks load their shares. `layers`: of the model, which are shared out as stages. Raises ModelError and
    MemoryError."""
    dtype = None if config.dtype == "auto" else config.dtype
    return processes.load(LoadShare(config.model, dtype, config.max_context_tokens, config.threads, gpus, layers))


def _free_bytes(loaded: Sequence[ShareLoaded], gpus: tuple[int, ...]) -> int:
    """Free memory for the KV of all ranks: of this machine, or of as many GPUs as they have, by the fullest."""
    return min(share.free_bytes or 0 for share in loaded) * len(set(gpus)) if gpus else free_bytes("cpu")


def _size(config: WorkerConfig, shapes: Sequence[KvGeometry], context: int, free: int) -> capacity.Capacity:
    """The capacity with pools of these shapes. Memory is counted over all ranks. Raises ConfigError."""
    held = replace(shapes[0], kv_heads=sum(shape.kv_heads for shape in shapes))
    budget = capacity.kv_budget(config.kv_cache_bytes, free, config.device)
    return capacity.decide(held, context, budget, config.landing_bytes, lands=config.lands)


def _make_pools(
    config: WorkerConfig,
    processes: RankProcesses,
    order: MakeRunner,
    served: LoadedFacts,
    shapes: Sequence[KvGeometry],
    gpus: tuple[int, ...],
) -> list[KvPool]:
    """Let the ranks make their pools and runners, and map the pools into this process too. Raises MemoryError."""
    size = order.blocks * shapes[0].block_bytes
    memories: Sequence[mmap | Tensor]
    if gpus:
        handles = processes.make_runners_on_gpus(order)
        devices = [torch.device("cuda", gpu) for gpu in gpus]
        memories = [handle.map(size, device) for handle, device in zip(handles, devices, strict=True)]
    else:
        devices = [CPU] * len(shapes)
        memories = [memory.bytes for memory in processes.make_runners(order, size)]
    is_checked = config.verify == Verify.FULL
    return [
        KvPool(shape, order.blocks, served.kv_dtype, device, with_checksums=is_checked, memory=memory)
        for shape, device, memory in zip(shapes, devices, memories, strict=True)
    ]
