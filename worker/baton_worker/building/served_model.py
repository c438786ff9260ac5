"""Values and checks of a served model that every engine needs, whether this process computes or its ranks do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.grammars.vocabulary import Vocabulary, named_end_ids, read_vocabulary
from baton_engine.model.loading import RANDOM_SCHEME
from baton_engine.model.servable import CONFIG, servable_config
from baton_kernels.sampling.token_mask import prepare_for
from baton_wire.kv_shape import KvGeometry
from baton_wire.messages.values import WIRE_VERSION, PairFingerprint
from baton_wire.models.decoder_spec import DecoderSpec
from baton_worker.building.bundle_files import TokenizerBundle
from baton_worker.config import WorkerConfig
from baton_worker.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedFacts:
    """The model that a worker serves, as its fingerprint has it."""

    config: DecoderSpec
    dtype: torch.dtype
    kv_dtype: torch.dtype
    max_context_tokens: int


class StartStages:
    """Times the parts of the start, one after the other."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._began_s = time.monotonic()

    def end(self, name: str) -> None:
        now = time.monotonic()
        self.seconds[name], self._began_s = now - self._began_s, now


def device_of(config: WorkerConfig) -> torch.device:
    """Raises ConfigError where the device is not there, or lacks a type that is asked for."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("argument --device: cuda: this machine has no usable NVIDIA GPU; allowed here: cpu")
    if config.kv_cache_dtype == "fp8" and config.device != "cuda":
        raise ConfigError(f"argument --kv-cache-dtype: fp8 with --device {config.device}; allowed there: auto")
    return torch.device(config.device)


def named_kv_dtype(config: WorkerConfig) -> str | None:
    """The dtype of KV that was asked for; None: the model's."""
    return None if config.kv_cache_dtype == "auto" else config.kv_cache_dtype


def row_masks(bundle: TokenizerBundle, vocab_size: int, max_sequences: int, device: torch.device) -> RowMasks:
    """The vocabulary is read in the background: the first grammar comes later."""

    def read() -> Vocabulary:
        prepare_for(device)
        files = bundle.files()
        return read_vocabulary(files["tokenizer.json"] or "", named_end_ids(files), vocab_size)

    return RowMasks(GrammarCompiler(read), max_sequences)


def check_quantization(config: WorkerConfig) -> None:
    """Raises ConfigError before weights are read; ModelError."""
    method = servable_config(config_path(config.model)).formats.method
    if method is not None and config.quantization == "none":
        raise ConfigError(
            f"argument --quantization: none, but the model's weights are stored as {method}; allowed: auto"
        )


def config_path(model: str) -> Path:
    if model.startswith(RANDOM_SCHEME):
        return Path(model.removeprefix(RANDOM_SCHEME).partition("?")[0])
    return Path(model) / CONFIG


def model_directory(model: str) -> Path:
    if model.startswith(RANDOM_SCHEME):
        return config_path(model).parent
    directory = Path(model)
    if not directory.is_dir():
        raise ConfigError(f"argument --model: {model}: no such directory")
    return directory


def fingerprint_of(
    served: LoadedFacts, model_hash: str, geometry: KvGeometry, bundle: TokenizerBundle
) -> PairFingerprint:
    """The fingerprint of the whole model, whatever the number of ranks."""
    return PairFingerprint(
        wire_version=WIRE_VERSION,
        model_hash=model_hash,
        dtype=str(served.dtype).removeprefix("torch."),
        kv_dtype=str(served.kv_dtype).removeprefix("torch."),
        layers=served.config.num_layers,
        kv_heads=served.config.num_kv_heads,
        head_dim=served.config.head_dim,
        rope=served.config.rope_digest(served.max_context_tokens),
        tokenizer=bundle.sha256,
        windowed_block_tokens=geometry.block_tokens if geometry.groups else 0,
    )
