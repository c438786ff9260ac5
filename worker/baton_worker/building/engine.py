"""Build the engine of a configuration: model, tokenizer bundle, KV pool, runner, scheduler.

What can be wrong with a model or a size is found here, before anything listens, as one ConfigError.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import DTYPES, load_model
from baton_engine.model.model_directory import read_json_object
from baton_engine.model.step_cost import cost_model
from baton_engine.running.launches import Launches
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.step_load import StepLoad
from baton_kernels.kv.kv_scales import KV_FP8
from baton_kv_transfer.handover import Verify
from baton_wire.models.errors import ModelError
from baton_wire.rules.hardware import Peak, peak_of
from baton_worker.building import block_budget as capacity
from baton_worker.building.bundle_files import read_bundle
from baton_worker.building.memory_limit import free_bytes
from baton_worker.building.parts import EngineParts, limits_of, scheduler_of
from baton_worker.building.served_model import (
    LoadedFacts,
    StartStages,
    check_quantization,
    config_path,
    device_of,
    fingerprint_of,
    model_directory,
    row_masks,
)
from baton_worker.building.start_kernels import StartKernels
from baton_worker.building.tasks import encoding_limits
from baton_worker.building.transfer import LoadedAhead
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError

BLOCK_TOKENS = {"cpu": 16, "cuda": 64}


def build(
    config: WorkerConfig, observe_step: Callable[[int, StepLoad, float], None], *, alone: bool = False
) -> EngineParts:
    """Load and size everything. `observe_step` is called with each step's number, load and seconds.

    `alone`: the engine decodes what it prefills, whatever its role. Raises ConfigError with one line.
    """
    device = device_of(config)
    torch.set_num_threads(config.threads)
    bundle = read_bundle(model_directory(config.model))
    asked_dtype = None if config.dtype == "auto" else DTYPES[config.dtype]
    stages = StartStages()
    kernels = None
    if device.type == "cuda":
        torch.zeros(1, device=device)
        kernels = StartKernels(config.kernels, torch.cuda.get_device_name(device))
        stages.end("device")
    ahead = None if alone else LoadedAhead(config)
    try:
        check_quantization(config)
        loaded = load_model(config.model, asked_dtype, device, config.max_context_tokens, config.offloaded_layers)
    except ModelError as error:
        raise ConfigError(f"argument --model: {error}") from error
    encoding = encoding_limits(loaded.config, config.tasks)
    stages.end("weights")
    context = loaded.max_context_tokens
    kv_dtype = KV_FP8 if config.kv_cache_dtype == "fp8" else loaded.dtype
    geometry = kv_geometry(loaded.config, kv_dtype, config.block_tokens or BLOCK_TOKENS[config.device])
    budget = capacity.kv_budget(config.kv_cache_bytes, free_bytes(config.device), config.device)
    sized = capacity.decide(geometry, context, budget, config.landing_bytes, lands=config.lands)
    pool = KvPool(geometry, sized.blocks, kv_dtype, device, with_checksums=config.verify == Verify.FULL)
    stages.end("pool")
    masks = row_masks(bundle, loaded.config.vocab_size, config.max_sequences, device)
    scheduler = scheduler_of(config, pool, context, masks)
    decodes = alone or config.lands or config.keep_answers
    hands_over = config.hands_over and not alone
    launches = Launches(
        read_json_object(config_path(config.model)),
        *(loaded.dtype, kv_dtype, geometry.block_tokens, config.max_sequences, context),
        decodes=decodes,
        hands_over=hands_over,
    )
    if ahead is not None:
        ahead.wait()  # another thread's calls to the device would break a recording of graphs
    runner = ModelRunner(
        *(loaded, pool, config.max_sequences, masks),
        decodes=decodes,
        hands_over=hands_over,
        is_compiled=kernels is not None and kernels.cover(launches),
        ended=stages.end,
    )
    pool.warm_up()
    stages.end("hand-over")
    if kernels is not None:
        kernels.keep(launches)
        kernels.ready()
    try:
        model_hash = loaded.model_hash  # waits until the files are hashed
    except ModelError as error:
        raise ConfigError(f"argument --model: {error}") from error
    stages.end("fingerprint")
    return EngineParts(
        bundle=bundle,
        geometry=geometry,
        pools=[pool],
        landing_bytes=sized.landing_bytes,
        scheduler=scheduler,
        stepper=Stepper(scheduler, runner, observe_step),
        limits=limits_of(config, loaded.config.vocab_size, context, encoding=encoding),
        fingerprint=fingerprint_of(
            LoadedFacts(loaded.config, loaded.dtype, kv_dtype, context), model_hash, geometry, bundle
        ),
        watch_layers=runner.watch_layers,
        masks=masks,
        costs=cost_model(loaded.config, loaded.dtype.itemsize, geometry.element_bytes),
        peak=peak_of_device(device, loaded.dtype),
        stages=stages.seconds,
        kernels=None if kernels is None else kernels.here,
    )


def peak_of_device(device: torch.device, dtype: torch.dtype) -> Peak | None:
    """The device's peak rates by its maker's data sheet; None where they are not known: CPUs and float32."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    return peak_of(torch.cuda.get_device_name(device))
