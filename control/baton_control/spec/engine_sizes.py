"""The sizes of one worker's engine that a deployment may set; all others follow from the model and the memory."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import Memory

STEP_TOKENS = 8192
"""Default of a worker for `maxStepTokens`."""


class EngineSpec(Model):
    """Engine sizes of one worker. The worker chooses unset ones from the model and its memory."""

    kv_cache_memory: Annotated[Memory, Field(ge=1 << 20, le=1 << 44)] | None = None
    """Memory for the KV cache. Unset: a share of the memory that is free once the weights are loaded."""
    block_tokens: Annotated[int, Field(ge=8, le=256)] | None = None
    """Tokens per KV block, the unit of allocation and reuse. Unset: 16 on CPUs, 64 on GPUs."""
    max_sequences: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Maximum number of sequences that are computed together. Unset: 64."""
    max_step_tokens: Annotated[int, Field(ge=16, le=1 << 18)] | None = None
    """Maximum number of prompt tokens per step. More raise throughput, fewer delay other requests less. Unset: 8192."""
    chunk_tokens: Annotated[int, Field(ge=16, le=1 << 18)] | None = None
    """Maximum number of tokens of one prompt per step, at most `maxStepTokens`. Unset: `maxStepTokens`."""
    max_waiting: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Maximum number of sequences that wait at the worker; further ones go to another worker. Unset: 1024."""

    offloaded_layers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Layers whose weights stay in the node's memory and are copied in every step, for large steps. Unset: 0."""
    offload_decode: bool = False
    """Lets decode workers have offloaded layers too. Each of their steps then waits for all copies."""

    @model_validator(mode="after")
    def _chunks_fit_into_a_step(self) -> EngineSpec:
        most = self.max_step_tokens or STEP_TOKENS
        if self.chunk_tokens is not None and self.chunk_tokens > most:
            message = f"{self.chunk_tokens} is not allowed: must be at most maxStepTokens, which is {most}"
            raise broken_rule("chunkTokens", message)
        return self
