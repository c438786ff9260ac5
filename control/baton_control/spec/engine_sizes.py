"""The sizes of one worker's engine that a deployment may set; all others follow from the model and the memory."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from baton_control.spec.base_model import Model, broken_rule
from baton_control.spec.quantities import Memory

STEP_TOKENS = 8192
"""What a worker takes for `maxStepTokens` by itself."""


class EngineSpec(Model):
    """Sizes of one worker; unset ones are chosen by the worker from the model and the memory it finds."""

    kv_cache_memory: Annotated[Memory, Field(ge=1 << 20, le=1 << 44)] | None = None
    """Memory for KV; unset: a share of what is free once the weights are loaded."""
    block_tokens: Annotated[int, Field(ge=8, le=256)] | None = None
    """Tokens whose KV shares a block, the unit of allocation and reuse; unset: 16 on CPUs, 64 on GPUs."""
    max_sequences: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Most sequences that are computed together; unset: 64."""
    max_step_tokens: Annotated[int, Field(ge=16, le=1 << 18)] | None = None
    """Most prompt tokens in one step: more use the accelerator better, fewer delay others less; unset: 8192."""
    chunk_tokens: Annotated[int, Field(ge=16, le=1 << 18)] | None = None
    """Most tokens of one prompt in a step, at most `maxStepTokens`; unset: as many."""
    max_waiting: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    """Most sequences that wait at the worker; more are refused, and sent elsewhere. Unset: 1024."""

    offloaded_layers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Layers whose weights stay in the node's memory and are copied in every step; for steps of many tokens. Unset: 0.
    """
    offload_decode: bool = False
    """Whether decode workers may have such layers too: each of their steps waits for all copies."""

    @model_validator(mode="after")
    def _chunks_fit_into_a_step(self) -> EngineSpec:
        most = self.max_step_tokens or STEP_TOKENS
        if self.chunk_tokens is not None and self.chunk_tokens > most:
            message = f"{self.chunk_tokens} is not allowed: must be at most maxStepTokens, which is {most}"
            raise broken_rule("chunkTokens", message)
        return self
