"""A real scheduler and runner that encode prompts, and the formula of sentence-transformers to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import PromptEncoded, SchedulerEvent, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_wire.messages.encoding import Encoding, EncodingKind, unpack_floats
from baton_wire.messages.values import RequestKey, SamplingParams
from baton_wire.models.pooling import Pooling, PoolingSpec

BLOCK_TOKENS = 16
EMBEDDING = Encoding(EncodingKind.EMBEDDING)


def key_of(number: int) -> RequestKey:
    return RequestKey(number.to_bytes(16), 1)


def encoding_spec(number: int, tokens: Sequence[int], encoding: Encoding = EMBEDDING) -> SequenceSpec:
    sampling = SamplingParams(max_tokens=1, temperature=0.0)
    return SequenceSpec(key_of(number), tuple(tokens), len(tokens), (0,), sampling, "", 1e9, encoding=encoding)


class EncoderEngine:
    """A scheduler and a runner on one model, with its pooling replaced."""

    def __init__(
        self, loaded: LoadedModel, pooling: PoolingSpec, max_step_tokens: int = 8_192, blocks: int = 64, slots: int = 8
    ) -> None:
        loaded = replace(loaded, config=replace(loaded.config, pooling=pooling))
        geometry = kv_geometry(loaded.share_config, loaded.dtype, BLOCK_TOKENS)
        blocks *= len(geometry.windows)
        context = loaded.max_context_tokens
        config = EngineConfig(
            *(blocks, BLOCK_TOKENS, slots, context), max_step_tokens=max_step_tokens, windows=geometry.windows
        )
        pool = KvPool(geometry, blocks, loaded.dtype, loaded.device)
        self.scheduler = Scheduler(config)
        self.stepper = Stepper(self.scheduler, ModelRunner(loaded, pool, config.max_slots))

    def run(self, *specs: SequenceSpec) -> list[SchedulerEvent]:
        for spec in specs:
            self.scheduler.submit(spec, 0.0)
        events: list[SchedulerEvent] = []
        while self.stepper.turn(0.0):
            events += self.scheduler.events()
        return events

    def encode(self, *specs: SequenceSpec) -> dict[int, bytes]:
        """The packed result of each prompt, by its number."""
        results: dict[int, bytes] = {}
        for event in self.run(*specs):
            if isinstance(event, PromptEncoded):
                number = int.from_bytes(event.key.request)
                assert number not in results, "a prompt is encoded once"
                results[number] = event.values
        return results


def tensor_of(packed: bytes) -> torch.Tensor:
    return torch.tensor(unpack_floats(packed).tolist())


@torch.inference_mode()
def reference_embedding(
    reference: Any, tokens: Sequence[int], pooling: PoolingSpec, dimensions: int | None = None
) -> torch.Tensor:
    """The vector by the formula of sentence-transformers, from the hidden states of transformers."""
    body = reference.base_model
    if body is reference:  # Llama 4, whose prefix is another; or a folder that was saved without its head
        body = getattr(reference, "model", reference)
    states = body(torch.tensor([list(tokens)])).last_hidden_state[0].float()
    match pooling.method:
        case Pooling.FIRST:
            vector = states[0]
        case Pooling.MEAN:
            vector = states.sum(0) / len(tokens)
        case Pooling.LAST:
            vector = states[-1]
    vector = vector[:dimensions]
    return torch.nn.functional.normalize(vector, dim=0) if pooling.is_normalised else vector
