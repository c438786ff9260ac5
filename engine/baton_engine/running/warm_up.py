"""Run once what a worker may run later, so that nothing is compiled or loaded after it is ready.

Decode graphs prepare themselves by being captured. Here: prompt steps of a few sizes (a GPU's libraries choose
by size), the last layer's decode attention outside a graph, and every way to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.model.decoder import Decoder
from baton_engine.model.layers.attention import LastRows, StepRows
from baton_engine.model.layers.experts import InputScaledExperts, StackedExperts, WithSharedExpert
from baton_engine.model.layers.linear import Projection
from baton_engine.model.layers.norm import NormedProjection, ScaledProjection
from baton_engine.model.layers.summed import SummedProjection
from baton_engine.running.sampler import Sampler
from baton_engine.scheduling.step_plan import OpenSlot
from baton_kernels.attention.attention_inputs import DecodeRows, PrefillRows
from baton_kernels.experts.expert_inputs import Routing
from baton_kernels.experts.experts import launched_tokens
from baton_kernels.sampling.penalties import apply_penalties
from baton_kernels.sampling.sampling_inputs import Penalties
from baton_kernels.sampling.token_mask import mask_words
from baton_wire.messages.values import SamplingParams

GPU_PROMPTS: Final = (1, 16, 37, 128, 200, 1024, 2001)
"""Triton compiles separately for arguments that are 1 or multiples of 16; attention splits long prompts. Quantised
products use other kernels up to 128 rows, up to 256 and beyond 512."""
EXPERT_TOKENS: Final = 8_192
"""Most tokens of a step for which a mixture's kernels are compiled: they differ by tokens for each expert."""
CPU_PROMPTS: Final = (1,)
"""One token is enough for the compiled kernels."""
DRAWS: Final = (
    SamplingParams(max_tokens=1, temperature=0.0),
    SamplingParams(max_tokens=1, temperature=0.0, logit_bias=((0, 1.0),)),
    SamplingParams(max_tokens=1, temperature=1.0, seed=1),
    SamplingParams(max_tokens=1, temperature=1.0, seed=1, top_p=0.9, logprobs=1),
    SamplingParams(max_tokens=1, temperature=1.0, seed=1, presence_penalty=1.0),
    SamplingParams(max_tokens=1, temperature=1.0, seed=1, presence_penalty=1.0, top_k=4, logprobs=2),
)


@torch.inference_mode()
def warm_up(model: Decoder, kv_pool: Tensor, vocab_size: int, max_context_tokens: int) -> None:
    """Run everything once, and wait for it. Nothing in the pool changes: every row's place is -1."""
    device = kv_pool.device
    if device.type == "cuda" and model.ring is None:
        model = model.sample()
    _run_prompts(model, kv_pool, GPU_PROMPTS if device.type == "cuda" else CPU_PROMPTS, max_context_tokens)
    if model.draws:
        _run_draws(model, vocab_size, device, DRAWS)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def rehearse(model: Decoder, kv_pool: Tensor, vocab_size: int, max_context_tokens: int) -> None:
    """Launch what `warm_up` launches on a GPU, for `compiled_together`: no computed value is used as an index."""
    model = model if model.ring is not None else model.sample()
    _run_prompts(model, kv_pool, GPU_PROMPTS, max_context_tokens)
    for number, layer in enumerate(model.layers):
        if model.ring is not None:
            model.ring.enter(number)
        run_experts(layer.mlp, EXPERT_TOKENS)
        if model.ring is not None:
            model.ring.leave(number)
    _run_draws(model, vocab_size, kv_pool.device, [_without_counts(sampling) for sampling in DRAWS])
    _run_penalties(vocab_size, kv_pool.device)


def _run_penalties(vocab_size: int, device: torch.device) -> None:
    """Launch penalties as a draw does, without counting drawn tokens."""
    logits, neutral = torch.zeros(1, vocab_size, device=device), torch.ones(1, device=device)
    in_prompt, counts = torch.zeros_like(logits, dtype=torch.bool), torch.zeros_like(logits, dtype=torch.int32)
    apply_penalties(logits, in_prompt, counts, Penalties(neutral, neutral, neutral))


def run_experts(block: Projection, most_tokens: int) -> None:
    """Launch all kernels that a mixture may use for up to `most_tokens` tokens."""
    while isinstance(block, NormedProjection | ScaledProjection | SummedProjection):
        block = block.projection
    block = block.experts if isinstance(block, WithSharedExpert) else block
    stacked = block.experts if isinstance(block, InputScaledExperts) else block
    if not isinstance(stacked, StackedExperts):
        return
    router = stacked.router  # whose weight may be float32: experts in stacks are always multiplied in bfloat16
    count, per_token, device = router.weight.shape[0], router.per_token, router.weight.device
    if isinstance(block, InputScaledExperts):  # a row for each expert of a token
        most_tokens, per_token = most_tokens * per_token, 1
    for tokens in launched_tokens(count, per_token, most_tokens):
        rows = torch.zeros(tokens, router.weight.shape[1], dtype=torch.bfloat16, device=device)
        if isinstance(block, InputScaledExperts):
            stacked.routed(rows, Routing(torch.ones(tokens, 1, device=device), torch.zeros_like(rows[:, :1]).long()))
        else:
            stacked(rows)


def _run_draws(model: Decoder, vocab_size: int, device: torch.device, draws: Sequence[SamplingParams]) -> None:
    sampler = Sampler(vocab_size, 1, device, model.vocabulary)
    hidden = torch.zeros(1, model.embedding.shape[1], dtype=model.embedding.dtype, device=device)
    logits = model.drawn_logits(hidden)
    for sampling in draws:
        sampler.open(OpenSlot(0, sampling, 0, (0,), (), 1, None))
        sampler.draw((0,), logits)
    sampler.draw((0,), logits, _first_id(vocab_size))


def _without_counts(sampling: SamplingParams) -> SamplingParams:
    """Replace presence penalties by a bias: logits still change, but no drawn id is used as an index, as
    `compiled_together` requires."""
    if not sampling.presence_penalty:
        return sampling
    return msgspec.structs.replace(sampling, presence_penalty=0.0, logit_bias=((0, 1.0),))


def _run_prompts(model: Decoder, kv_pool: Tensor, prompts: Sequence[int], max_context_tokens: int) -> None:
    device = kv_pool.device
    for tokens in (tokens for tokens in prompts if tokens <= max_context_tokens):
        for draws in (True, False):
            rows = _prompt(tokens, kv_pool.shape[4], device, draws, model.kv_groups)
            model.hidden_states(torch.zeros(tokens, dtype=torch.int64, device=device), rows, kv_pool)


def _first_id(vocab_size: int) -> TokenMasks:
    allowed = np.zeros((1, mask_words(vocab_size)), dtype=np.uint32)
    allowed[0, 0] = 1
    return TokenMasks.of(np.zeros(1, dtype=np.int64), allowed)


def _prompt(tokens: int, block_tokens: int, device: torch.device, draws: bool, groups: int) -> StepRows:
    """A whole prompt that reads the present content of block 0."""
    tables = torch.zeros(1, -(-tokens // block_tokens), dtype=torch.int32, device=device)
    starts = torch.tensor([0, tokens], dtype=torch.int32, device=device)
    lens = torch.tensor([tokens], dtype=torch.int32, device=device)  # aligned, as a step's own
    wanted = torch.tensor([tokens - 1], device=device)
    nowhere = torch.full((tokens,), -1, dtype=torch.int64, device=device)
    prefill = [PrefillRows(tables, starts, lens)] * groups
    last = LastRows(wanted, DecodeRows(tables, lens)) if draws else None
    return StepRows.of_groups(torch.arange(tokens, device=device), [nowhere] * groups, prefill, [None] * groups, last)
