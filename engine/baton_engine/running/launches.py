"""The values that decide which kernels a worker launches, and compiling these kernels ahead of a start."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

import baton_engine
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.decoder import Decoder
from baton_engine.running.captured_steps import CapturedSteps
from baton_engine.running.warm_up import rehearse
from baton_kernels.ahead.compiling import compiled_together
from baton_wire.models.config_fields import JsonObject
from baton_wire.models.decoder_spec import DecoderSpec

BLOCKS = 16
"""Blocks of a pool without memory; no kernel depends on their number."""


@dataclass(frozen=True, slots=True)
class Launches:
    """The kernels that one worker launches before it is ready: the same ones where these values are equal."""

    config: JsonObject
    """The model's config.json."""
    dtype: torch.dtype
    kv_dtype: torch.dtype
    block_tokens: int
    slots: int
    context_tokens: int
    decodes: bool
    hands_over: bool
    """Both as in `StepShapes`."""

    @property
    def digest(self) -> str:
        """SHA-256 of these values and the engine's sources, hexadecimal."""
        sizes = (self.block_tokens, self.slots, self.context_tokens)
        values = [str(value) for value in (self.dtype, self.kv_dtype, *sizes)]
        text = json.dumps([self.config, *values, self.decodes, self.hands_over], sort_keys=True)
        return hashlib.sha256((_hash_sources() + text).encode()).hexdigest()

    def __str__(self) -> str:
        dtypes = " and KV in ".join(str(dtype).removeprefix("torch.") for dtype in (self.dtype, self.kv_dtype))
        role = ", ".join(name for name, is_so in (("decodes", self.decodes), ("hands over", self.hands_over)) if is_so)
        return (
            f"{self.config.get('model_type')} in {dtypes}, blocks of {self.block_tokens}, {self.slots} slots, "
            f"{self.context_tokens} tokens: {role}"
        )


@cache
def _hash_sources() -> str:
    root = Path(baton_engine.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()


@torch.inference_mode()
def compile_ahead(model: Decoder, spec: DecoderSpec, launches: Launches) -> None:
    """Compile every kernel that a worker with this model launches before it is ready into Triton's cache.

    The model is on the device `meta`, within `compiling_for`.
    """
    device = model.embedding.device
    geometry = kv_geometry(spec, launches.kv_dtype, launches.block_tokens)
    pool = KvPool(geometry, BLOCKS, launches.kv_dtype, device)
    last_tokens = torch.zeros(launches.slots + 1, dtype=torch.int64, device=device)
    steps = CapturedSteps(
        model,
        pool.tensor,
        last_tokens,
        -(-launches.context_tokens // launches.block_tokens),
        decodes=launches.decodes,
        hands_over=launches.hands_over,
    )
    with compiled_together():
        steps.rehearse()
        rehearse(model, pool.tensor, spec.vocab_size, launches.context_tokens)
        pool.rehearse()
