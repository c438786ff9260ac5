"""Build the engine of a configuration: model, tokenizer bundle, KV pool, runner, scheduler.

What can be wrong with a model or a size is found here, before anything listens, as one ConfigError.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.grammars.vocabulary import Vocabulary, named_end_ids, read_vocabulary
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import DTYPES, RANDOM_SCHEME, LoadedModel, load_model
from baton_engine.model.model_directory import read_json_object
from baton_engine.model.servable import CONFIG, servable_config
from baton_engine.model.step_cost import cost_model
from baton_engine.running.launches import Launches
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.step_load import StepLoad
from baton_kernels.kv.kv_scales import KV_FP8
from baton_kernels.sampling.token_mask import prepare_for
from baton_kv_transfer.handover import Verify
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import WIRE_VERSION, PairFingerprint
from baton_wire.models.errors import ModelError
from baton_wire.rules.hardware import Peak, peak_of
from baton_worker.building import block_budget as capacity
from baton_worker.building.bundle_files import TokenizerBundle, read_bundle
from baton_worker.building.memory_limit import free_bytes
from baton_worker.building.parts import EngineParts, limits_of, scheduler_of
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
    device = _device(config)
    torch.set_num_threads(config.threads)
    bundle = read_bundle(_model_directory(config.model))
    asked_dtype = None if config.dtype == "auto" else DTYPES[config.dtype]
    stages = _Stages()
    kernels = None
    if device.type == "cuda":
        torch.zeros(1, device=device)
        kernels = StartKernels(config.kernels, torch.cuda.get_device_name(device))
        stages.end("device")
    ahead = None if alone else LoadedAhead(config)
    try:
        _check_quantization(config)
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
    masks = _masks(bundle, loaded.config.vocab_size, config.max_sequences, device)
    scheduler = scheduler_of(config, pool, context, masks)
    decodes = alone or config.lands or config.keep_answers
    hands_over = config.hands_over and not alone
    launches = Launches(
        read_json_object(_config_path(config.model)),
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
        fingerprint = _fingerprint(loaded, kv_dtype, geometry, bundle)  # waits until the files are hashed
    except ModelError as error:
        raise ConfigError(f"argument --model: {error}") from error
    stages.end("fingerprint")
    return EngineParts(
        bundle=bundle,
        pool=pool,
        landing_bytes=sized.landing_bytes,
        scheduler=scheduler,
        stepper=Stepper(scheduler, runner, observe_step),
        limits=limits_of(config, loaded.config.vocab_size, context, encoding=encoding),
        fingerprint=fingerprint,
        watch_layers=runner.watch_layers,
        masks=masks,
        costs=cost_model(loaded.config, loaded.dtype.itemsize, geometry.element_bytes),
        peak=_peak(device, loaded.dtype),
        stages=stages.seconds,
        kernels=None if kernels is None else kernels.here,
    )


class _Stages:
    """Times the parts of the start, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began_s = time.monotonic()

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._began_s = now - self._began_s, now


def _masks(bundle: TokenizerBundle, vocab_size: int, max_sequences: int, device: torch.device) -> RowMasks:
    """The vocabulary is read in the background: the first grammar comes later."""

    def read() -> Vocabulary:
        prepare_for(device)
        files = bundle.files()
        return read_vocabulary(files["tokenizer.json"] or "", named_end_ids(files), vocab_size)

    return RowMasks(GrammarCompiler(read), max_sequences)


def _device(config: WorkerConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("argument --device: cuda: this machine has no usable NVIDIA GPU; allowed here: cpu")
    if config.kv_cache_dtype == "fp8" and config.device != "cuda":
        raise ConfigError(f"argument --kv-cache-dtype: fp8 with --device {config.device}; allowed there: auto")
    return torch.device(config.device)


def _peak(device: torch.device, dtype: torch.dtype) -> Peak | None:
    """The device's peak rates by its maker's data sheet; None where they are not known: CPUs and float32."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return None
    return peak_of(torch.cuda.get_device_name(device))


def _check_quantization(config: WorkerConfig) -> None:
    """Raises ConfigError before weights are read; ModelError."""
    method = servable_config(_config_path(config.model)).formats.method
    if method is not None and config.quantization == "none":
        raise ConfigError(
            f"argument --quantization: none, but the model's weights are stored as {method}; allowed: auto"
        )


def _config_path(model: str) -> Path:
    if model.startswith(RANDOM_SCHEME):
        return Path(model.removeprefix(RANDOM_SCHEME).partition("?")[0])
    return Path(model) / CONFIG


def _model_directory(model: str) -> Path:
    if model.startswith(RANDOM_SCHEME):
        return _config_path(model).parent
    directory = Path(model)
    if not directory.is_dir():
        raise ConfigError(f"argument --model: {model}: no such directory")
    return directory


def _fingerprint(
    loaded: LoadedModel, kv_dtype: torch.dtype, geometry: KvGeometry, bundle: TokenizerBundle
) -> PairFingerprint:
    dtype = str(loaded.dtype).removeprefix("torch.")
    return PairFingerprint(
        wire_version=WIRE_VERSION,
        model_hash=loaded.model_hash,
        dtype=dtype,
        kv_dtype=str(kv_dtype).removeprefix("torch."),
        layers=loaded.config.num_layers,
        kv_heads=loaded.config.num_kv_heads,
        head_dim=loaded.config.head_dim,
        rope=loaded.config.rope_digest(loaded.max_context_tokens),
        tokenizer=bundle.sha256,
        windowed_block_tokens=geometry.block_tokens if geometry.groups else 0,
    )
