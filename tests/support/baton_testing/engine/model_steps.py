"""Drive a model or a runner step by step with plans that show only what a test is about.

`ModelSteps` returns the logits of every row of a step; `RunnerSteps` goes through the runner and records what the
sampler is given. Both give slot s its own blocks, in an order that is neither ascending nor contiguous.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.runner import ModelRunner
from baton_engine.running.sampler import Draw
from baton_engine.running.slot_state import SlotState
from baton_engine.scheduling.step_plan import BlockUpdate, OpenSlot, PrefillChunk, StepPlan, StepResult
from baton_wire.messages.values import SamplingParams

GREEDY = SamplingParams(max_tokens=1_000, temperature=0.0)


def make_pool(loaded: LoadedModel, num_blocks: int, block_tokens: int = 16) -> KvPool:
    """A pool whose memory holds NaN, so that reading a slot that was never written shows."""
    pool = KvPool(kv_geometry(loaded.share_config, loaded.dtype, block_tokens), num_blocks, loaded.dtype, loaded.device)
    pool.tensor.fill_(float("nan"))
    return pool


def blocks_of(slot: int, slots: int, count: int) -> list[int]:
    """Blocks slot, slot + slots, …, in descending order."""
    return [slot + slots * index for index in reversed(range(count))]


def updates(slot: int, blocks: Sequence[int], kv_group: int = 0) -> tuple[BlockUpdate, ...]:
    return tuple(BlockUpdate(slot, index, block, kv_group) for index, block in enumerate(blocks))


def all_updates(slot: int, slots: int, count: int, groups: int) -> tuple[BlockUpdate, ...]:
    """`count` blocks of every group for one of `slots` slots, whose pool has as many for each."""
    return tuple(
        update
        for group in range(groups)
        for update in updates(slot, blocks_of(slot * groups + group, slots * groups, count), group)
    )


def opened(
    slot: int,
    sampling: SamplingParams = GREEDY,
    choice: int = 0,
    prompt: Sequence[int] = (),
    outputs: Sequence[int] = (),
    context: int = 0,
    last: int | None = None,
) -> OpenSlot:
    return OpenSlot(slot, sampling, choice, tuple(prompt), tuple(outputs), context, last)


def chunk(slot: int, tokens: Sequence[int], start: int = 0, sample: Sequence[int] = ()) -> PrefillChunk:
    return PrefillChunk(slot, start, tuple(tokens), tuple(sample))


class ModelSteps:
    """The decoder with its pool and slot state, without sampling."""

    def __init__(self, loaded: LoadedModel, slots: int = 4, block_tokens: int = 16, blocks_per_slot: int = 8) -> None:
        self.model = loaded.model
        groups = loaded.model.kv_groups
        self.pool = make_pool(loaded, slots * blocks_per_slot * groups, block_tokens)
        self.state = SlotState(slots, blocks_per_slot, self.pool.geometry, loaded.device)
        for slot in range(slots):
            self.state.set_blocks(all_updates(slot, slots, blocks_per_slot, groups))

    def prefill(self, *chunks: PrefillChunk) -> torch.Tensor:
        return self.forward(StepPlan(0, prefill=chunks))

    def decode(self, tokens: dict[int, int]) -> torch.Tensor:
        """One row per slot whose input is forced."""
        return self.forward(StepPlan(0, decode=self.force(tokens)))

    def force(self, tokens: dict[int, int]) -> tuple[int, ...]:
        for slot, token in tokens.items():
            self.state.last_tokens[slot] = token
        return tuple(tokens)

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> torch.Tensor:
        """Logits [T, vocab] of all rows: decode rows first, then prefill chunks."""
        return self._forward(plan, None)

    @torch.inference_mode()
    def drawn(self, plan: StepPlan) -> torch.Tensor:
        """Logits [S, vocab] of the rows that draw, as the runner computes them."""
        return self._forward(plan, DrawingRows.of(plan.prefill, plan.decode))

    def _forward(self, plan: StepPlan, drawing: DrawingRows | None) -> torch.Tensor:
        ids, rows = self.state.rows(plan, drawing)
        return self.model.logits(self.model.hidden_states(ids, rows, self.pool.tensor))


class RunnerSteps:
    """A runner whose steps are numbered for the test; `seen` collects (slots, logits) of every draw."""

    def __init__(
        self,
        loaded: LoadedModel,
        slots: int = 4,
        block_tokens: int = 16,
        blocks_per_slot: int = 8,
        masks: RowMasks | None = None,
        *,
        decodes: bool = True,
    ) -> None:
        self.slots, self.blocks_per_slot = slots, blocks_per_slot
        self._groups = loaded.model.kv_groups
        self.pool = make_pool(loaded, slots * blocks_per_slot * loaded.model.kv_groups, block_tokens)
        self.seen: list[tuple[tuple[int, ...], torch.Tensor]] = []
        self.runner = ModelRunner(loaded, self.pool, slots, masks, decodes=decodes)
        self._draw = self.runner._sampler.draw
        setattr(self.runner._sampler, "draw", self._record)  # noqa: B010 - mypy: a method
        self._step = 0

    def _record(self, slots: tuple[int, ...], logits: torch.Tensor, masks: TokenMasks | None) -> Draw:
        self.seen.append((slots, logits.clone()))
        return self._draw(slots, logits, masks)

    def plan(
        self,
        opens: Sequence[OpenSlot] = (),
        prefill: Sequence[PrefillChunk] = (),
        decode: Sequence[int] = (),
        closes: Sequence[int] = (),
    ) -> StepPlan:
        """The next plan; slots that open get their own blocks."""
        self._step += 1
        tables = tuple(
            update
            for open_slot in opens
            for update in all_updates(open_slot.slot, self.slots, self.blocks_per_slot, self._groups)
        )
        return StepPlan(
            self._step, tuple(opens), tables, prefill=tuple(prefill), decode=tuple(decode), closes=tuple(closes)
        )

    def execute(
        self,
        opens: Sequence[OpenSlot] = (),
        prefill: Sequence[PrefillChunk] = (),
        decode: Sequence[int] = (),
        closes: Sequence[int] = (),
    ) -> StepResult:
        return self.runner.execute(self.plan(opens, prefill, decode, closes))

    def generate(
        self, prompt: Sequence[int], count: int, sampling: SamplingParams = GREEDY, slot: int = 0
    ) -> list[int]:
        """`count` ids of one sequence alone."""
        first = self.execute([opened(slot, sampling, prompt=prompt)], [chunk(slot, prompt, sample=[slot])])
        rest = [self.execute(decode=[slot]) for _ in range(count - 1)]
        return [result.tokens[0].ids[0] for result in (first, *rest)]
