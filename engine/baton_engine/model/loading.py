"""Load a model: from a directory of config.json and safetensors, or `random://CONFIG_JSON?seed=N` for benchmarks and
tests.

Names, shapes and types are checked before the first tensor is read, values while they are. Whatever is wrong is a
ModelError whose message names it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

import torch

from baton_engine.collectives.collective import SINGLE_RANK, Collective, RankShare
from baton_engine.collectives.stage_relay import StageRelay
from baton_engine.model.assembly import assemble
from baton_engine.model.checkpoint_files import ContentHash, find_checkpoint
from baton_engine.model.decoder import Decoder
from baton_engine.model.finite_weights import FiniteWeights
from baton_engine.model.model_directory import read_json_object, read_spec
from baton_engine.model.sharded_weights import shard_weights
from baton_engine.model.staged_weights import staged
from baton_engine.model.tensor_headers import without_head
from baton_engine.model.weights import RandomWeights, WeightSource, check_parameters, open_safetensors, served_tensors
from baton_wire.models.config_fields import JsonObject
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.errors import ModelError
from baton_wire.models.parsing import parse_spec
from baton_wire.models.sharding.degrees import check_degree
from baton_wire.models.sharding.shard_spec import shard_spec

RANDOM_SCHEME: Final = "random://"
DTYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class LoadedModel:
    config: DecoderSpec
    """The whole model, whatever the number of ranks."""
    share_config: DecoderSpec
    """The share of it that this rank computes: its heads and columns; with one rank equal to `config`."""
    model: Decoder
    content: ContentHash
    """Hash of config and weights."""
    dtype: torch.dtype
    device: torch.device
    max_context_tokens: int
    """Positions that the RoPE tables cover."""

    @property
    def model_hash(self) -> str:
        """Hexadecimal: equal exactly when two workers serve the same model. Waits until it is computed."""
        return self.content.hexdigest()


def load_model(
    path: str | Path,
    dtype: torch.dtype | None,
    device: torch.device,
    max_context_tokens: int | None = None,
    offloaded: int = 0,
    collective: Collective = SINGLE_RANK,
    relay: StageRelay | None = None,
) -> LoadedModel:
    """Load a model, or with several ranks this rank's share of it, in a dtype (None: `default_dtype`) onto a device.
    `relay`: the neighbours of a stage of a pipeline, of which the layers are loaded. Raises ModelError.

    max_context_tokens bounds the RoPE tables; None means all that the config allows, and more than that is refused.
    offloaded: how many layers' weights stay in the host's memory; the last layer's never do. Loading makes no call of
    the collective; the model makes some whenever it computes.
    """
    share = collective.share
    config_path, seed = _parse_source(str(path))
    if seed is None and not config_path.parent.is_dir():
        raise ModelError(f"{config_path.parent}: no such model directory")
    raw = read_json_object(config_path)
    config = parse_spec(raw) if seed is not None else read_spec(config_path.parent)
    if offloaded >= config.num_layers:
        raise ModelError(
            f"{offloaded} offloaded layers: the model has {config.num_layers}; allowed: up to {config.num_layers - 1}"
        )
    check_degree(config, share.ranks)
    context = config.context_within(max_context_tokens)
    own_dtype = dtype or default_dtype(config, device)

    def build(config: DecoderSpec, source: WeightSource) -> Decoder:
        return assemble(config, source, own_dtype, device, context, offloaded, collective, relay)

    with torch.inference_mode():
        if seed is not None:
            model = build(config, shard_weights(RandomWeights(config, seed, device), config, share))
            drawn_on = {} if device.type == "cpu" else {"random_device": device.type}
            content = ContentHash({**raw, "random_seed": seed, **drawn_on}, ())
        else:
            config, model, content = _load_directory(config_path.parent, raw, config, device, share, build)
    share_config = shard_spec(config, share.rank, share.ranks)
    return LoadedModel(config, share_config, model, content, own_dtype, device, context)


def default_dtype(config: DecoderSpec, device: torch.device) -> torch.dtype:
    """float32 on a CPU, which computes 16-bit types slowly; elsewhere the checkpoint's own, else bfloat16."""
    if device.type == "cpu":
        return torch.float32
    return DTYPES[config.dtype] if config.dtype is not None else torch.bfloat16


def _load_directory(
    directory: Path,
    raw: JsonObject,
    config: DecoderSpec,
    device: torch.device,
    share: RankShare,
    build: Callable[[DecoderSpec, WeightSource], Decoder],
) -> tuple[DecoderSpec, Decoder, ContentHash]:
    """Load a model directory. The hash of its files is computed meanwhile, and may finish later."""
    files = find_checkpoint(directory)
    with open_safetensors(files) as opened:
        whole = served_tensors(opened, config)
        config = without_head(whole.headers, config)
        check_parameters(whole, config)
        content = ContentHash(raw, files.paths, is_urgent=share.rank == 0)
        source = shard_weights(whole, config, share)
        moving: AbstractContextManager[WeightSource] = nullcontext(source)
        if device.type != "cpu":
            moving = staged(source, device)
        with moving as moved:
            weights = FiniteWeights(moved)
            model = build(config, weights)
            weights.check()
    return config, model, content


def _parse_source(source: str) -> tuple[Path, int | None]:
    """The path of config.json, and the seed when the weights are random."""
    if not source.startswith(RANDOM_SCHEME):
        return Path(source) / "config.json", None
    path, _, query = source.removeprefix(RANDOM_SCHEME).partition("?")
    options = parse_qs(query, keep_blank_values=True)
    seed = options.pop("seed", ["0"])
    if options or len(seed) != 1 or not seed[0].isdecimal():
        raise ModelError(f"model source {source!r}: allowed: {RANDOM_SCHEME}CONFIG_JSON[?seed=N] with N ≥ 0")
    return Path(path), int(seed[0])
