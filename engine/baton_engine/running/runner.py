"""The model runner: carries out step plans on one device.

`launch` reads top to bottom as the plan's order of effects; prefill chunks and decode rows go through the model in one
pass; only rows that draw go through the last layer's output and the head. On a CPU a launched step is done. On a GPU it
runs asynchronously, its results come to pinned memory, and the next step may be launched before they are collected.

A draw that follows a grammar needs the ids of the step before. So a step that is launched ahead runs only its layers
and the head at first; its draw is launched when the step before it is collected. The device computes meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton_engine.grammars.row_masks import DrawMasks
from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.memory.host_memory import keep_freed_memory, upload
from baton_engine.memory.kv_pool import KvPool
from baton_engine.model.loading import LoadedModel
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.encoded_prompts import EncodedRow, HiddenStateEncoder
from baton_engine.running.layer_notices import LayerListener, LayerNotices
from baton_engine.running.prompt_scores import ChunkScores, score
from baton_engine.running.sampler import Draw, Sampler
from baton_engine.running.slot_state import SlotState
from baton_engine.running.step_clock import StepClock, start_clock
from baton_engine.running.step_graphs import StepGraphs
from baton_engine.running.warm_up import rehearse, warm_up
from baton_engine.scheduling.step_plan import PrefillChunk, SlotFailure, SlotTokens, StepPlan, StepResult
from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.sampling.logprobs import Logprobs
from baton_wire.messages.values import TokenLogprob


@dataclass(slots=True)
class _InFlight:
    """A launched step."""

    step: int
    slots: tuple[int, ...]
    drawn: Draw | Tensor | None
    """The draw, on the host once the step is done by its clock; before the draw is launched, logits with one row a
    slot. None when no slot draws."""
    scores: tuple[ChunkScores, ...]
    clock: StepClock
    closes: tuple[int, ...]
    failures: tuple[SlotFailure, ...] = ()
    encoded: tuple[EncodedRow, ...] = ()
    is_whole: bool = False
    """True when nothing of the step is left to launch, as for the oldest one."""


class ModelRunner:
    """Implements `plan.Runner`. The pool's blocks are the scheduler's to give; slots are numbered [0, max_slots)."""

    def __init__(  # noqa: PLR0913 - the parts of one engine, and switches with defaults, keyword only
        self,
        loaded: LoadedModel,
        pool: KvPool,
        max_slots: int,
        masks: DrawMasks | None = None,
        *,
        decodes: bool = True,
        hands_over: bool = False,
        is_compiled: bool = False,
        ended: Callable[[str], None] = lambda stage: None,
    ) -> None:
        """`masks` follows grammars and thoughts; without it both are ignored. `decodes`: capture steps with decode rows
        too; a prefill worker usually has none, and starts sooner without them. `hands_over`: as in `StepShapes`.
        `is_compiled`: all kernels of the start are in Triton's cache and need not be looked for. `ended` is called with
        each stage of the start when it is over: on a GPU kernels and graphs, and the warm-up.
        """
        self._model = loaded.model
        self._pool = pool
        self._device = loaded.device
        max_blocks = -(-loaded.max_context_tokens // pool.geometry.block_tokens)
        self._slots = SlotState(max_slots, max_blocks, pool.geometry, loaded.device)
        self._encoder = HiddenStateEncoder(self._model, pool, self._slots, loaded.config.pooling)
        self._sampler = Sampler(loaded.config.vocab_size, max_slots, loaded.device, self._model.vocabulary)
        self._masks = masks
        self._notices: LayerNotices | None = None
        self._in_flight: deque[_InFlight] = deque()
        self._prompt_logits: dict[int, Tensor] = {}
        """By slot, the last row of logits [vocab] of a prompt whose draw comes in a later step."""
        self._graphs: StepGraphs | None = None
        sizes = (loaded.config.vocab_size, loaded.max_context_tokens)

        def rehearse_rest() -> None:
            rehearse(loaded.model, pool.tensor, *sizes)
            pool.rehearse()

        if loaded.device.type == "cpu":
            keep_freed_memory()
        elif loaded.model.ring is None:  # a captured step cannot wait for weights to arrive
            with torch.inference_mode():
                self._graphs = StepGraphs(
                    *(self._model, pool, self._slots.last_tokens, max_blocks),
                    decodes=decodes,
                    hands_over=hands_over,
                    rehearse=None if is_compiled else rehearse_rest,
                    ended=ended,
                )
        else:
            with compiled_together():
                rehearse_rest()
        warm_up(loaded.model, pool.tensor, *sizes)
        ended("warm-up")

    def watch_layers(self, listener: LayerListener) -> None:
        """Report finished layers to `listener` while prompts are computed. Call it before the first step."""
        geometry = self._pool.geometry
        layer_token_bytes = geometry.token_bytes // geometry.layers
        end = self._model.first_layer + len(self._model.layers)
        self._notices = LayerNotices(self._device, end, layer_token_bytes, listener)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        if self._in_flight and not self._in_flight[-1].is_whole:
            raise RuntimeError("launch: the draw of the step before waits for a result to be collected")
        clock = start_clock(self._device)
        self._slots.open(plan.opens)
        for opened in plan.opens:
            self._sampler.open(opened)
            if self._masks is not None:
                self._masks.open(opened)
        self._slots.set_blocks(plan.blocks)
        if self._graphs is not None:
            self._graphs.set_blocks(plan.blocks)
        if plan.copies:
            self._pool.copy_blocks([copy.source for copy in plan.copies], [copy.target for copy in plan.copies])
        encoded = self._encoder.run(plan)
        slots, drawn, scores = self._run(plan) if plan.prefill or plan.decode else ((), None, ())
        launched = _InFlight(plan.step, slots, drawn, scores, clock, plan.closes, encoded=encoded)
        if not self._in_flight or not self._follows_grammar(slots):
            self._finish(launched)
        self._in_flight.append(launched)

    def is_done(self) -> bool:
        return bool(self._in_flight) and self._in_flight[0].clock.is_done()

    def collect(self) -> StepResult:
        if not self._in_flight:
            raise RuntimeError("collect: no step was launched")
        oldest = self._in_flight.popleft()
        duration_s = oldest.clock.wait()
        tokens = _slot_tokens(oldest.slots, oldest.drawn) if isinstance(oldest.drawn, Draw) else ()
        if oldest.failures:
            failed = {failure.slot for failure in oldest.failures}
            tokens = tuple(entry for entry in tokens if entry.slot not in failed)
        if self._masks is not None:
            self._masks.take_drawn(tokens)
            self._masks.close(oldest.closes)
        for slot in oldest.closes:
            self._prompt_logits.pop(slot, None)
        self._encoder.close(oldest.closes)
        if self._in_flight and not self._in_flight[0].is_whole:
            self._finish(self._in_flight[0])
        scored = tuple(scores.read() for scores in oldest.scores)
        encoded = tuple(row.read() for row in oldest.encoded)
        return StepResult(oldest.step, tokens, duration_s, scored, oldest.failures, encoded)

    def execute(self, plan: StepPlan) -> StepResult:
        if self._in_flight:
            raise RuntimeError("execute: another step is in flight")
        self.launch(plan)
        return self.collect()

    def _run(self, plan: StepPlan) -> tuple[tuple[int, ...], Draw | Tensor | None, tuple[ChunkScores, ...]]:
        """Run the step. Returns the slots that draw, their draw or the logits to draw from, and scores of prompts."""
        late = tuple(chunk for chunk in plan.prefill if not chunk.tokens)
        places = [place for place, chunk in enumerate(plan.prefill) if chunk.tokens and chunk.encoding is None]
        if len(places) == len(plan.prefill):
            return self._compute(plan)
        computed = replace(plan, prefill=tuple(plan.prefill[place] for place in places))
        slots: tuple[int, ...] = ()
        drawn: Draw | Tensor | None = None
        scores: tuple[ChunkScores, ...] = ()
        if computed.prefill or computed.decode:
            slots, drawn, chunk_scores = self._compute(computed, draws_alone=not late)
            scores = tuple(replace(score, chunk=places[score.chunk]) for score in chunk_scores)
        if not late:
            return slots, drawn, scores
        logits = self._take_prompt_logits(late)
        late_slots = tuple(slot for chunk in late for slot in chunk.sample)
        return slots + late_slots, torch.cat((drawn, logits)) if isinstance(drawn, Tensor) else logits, scores

    def _take_prompt_logits(self, late: tuple[PrefillChunk, ...]) -> Tensor:
        """Logits [slots that draw, vocab] of chunks without tokens."""
        rows: list[Tensor] = []
        for chunk in late:
            self._slots.draw_later(chunk)
            rows += [self._prompt_logits.pop(chunk.slot)] * len(chunk.sample)
        return torch.stack(rows)

    def _compute(
        self, plan: StepPlan, *, draws_alone: bool = True
    ) -> tuple[tuple[int, ...], Draw | Tensor | None, tuple[ChunkScores, ...]]:
        """Do as `_run` for chunks with tokens. `draws_alone`: no other slot draws in this step."""
        if self._graphs is not None:
            plan = replace(plan, decode=self._slots.longest_first(plan.decode))
        drawing = DrawingRows.of(plan.prefill, plan.decode) if plan.prefill else None
        slots = plan.decode if drawing is None else drawing.slots
        written = None if self._notices is None else self._notices.of(plan)
        if self._graphs is not None:
            captured = self._graphs.hidden_states(plan, drawing, self._slots, written)
            if captured is not None:
                return slots, self._draw_captured(self._graphs, slots, drawing, captured, draws_alone), ()
        is_scored = any(chunk.targets for chunk in plan.prefill)
        token_ids, rows = self._slots.rows(plan, None if is_scored else drawing)
        hidden = self._model.hidden_states(token_ids, rows, self._pool.tensor, written)
        scores = score(self._model, hidden, plan.prefill, len(plan.decode)) if is_scored else ()
        if drawing is not None and not len(drawing.rows):
            return (), None, scores
        if drawing is not None and is_scored:
            hidden = hidden.index_select(0, upload(drawing.rows, self._device))
        return slots, self._logits(hidden, drawing), scores

    def _draw_captured(
        self,
        graphs: StepGraphs,
        slots: tuple[int, ...],
        drawing: DrawingRows | None,
        hidden: Tensor,
        draws_alone: bool,
    ) -> Draw | Tensor | None:
        """Draw from the hidden states of the rows that have logits: by a graph if all slots just want the greatest,
        else return logits."""
        if drawing is not None and not len(drawing.rows):
            return None
        is_each_once = draws_alone and (drawing is None or drawing.is_in_order)
        if is_each_once and graphs.draws(len(slots)) and not self._follows_grammar(slots):
            greedy_slots = self._sampler.count_greedy(slots)
            if greedy_slots is not None:
                return _to_host(Draw(graphs.greatest(len(slots)), greedy_slots, None, (), ()))
        return self._logits(hidden, drawing)

    def _logits(self, hidden: Tensor, drawing: DrawingRows | None) -> Tensor | None:
        """Logits with a row for each slot that draws, from a row of hidden states for each row that has logits; None
        when no slot draws. Rows of later draws are kept."""
        logits = self._model.drawn_logits(hidden)
        if drawing is None or drawing.is_in_order:
            return logits
        for slot, row in drawing.later:
            self._prompt_logits[slot] = logits[row].clone()
        return logits.index_select(0, upload(drawing.logits_rows, self._device)) if drawing.slots else None

    def _follows_grammar(self, slots: tuple[int, ...]) -> bool:
        return self._masks is not None and self._masks.bind(slots)

    @torch.inference_mode()
    def _finish(self, step: _InFlight) -> None:
        """Launch the rest of a step: its draw, unless that is captured."""
        if isinstance(step.drawn, Tensor):
            masks = None
            if self._masks is not None and self._masks.bind(step.slots):
                constraints = self._masks.constraints(step.slots)
                masks, step.failures = constraints.masks, constraints.failures
            step.drawn = self._draw(step.slots, step.drawn, masks)
        step.clock.stop()
        step.is_whole = True

    def _draw(self, slots: tuple[int, ...], logits: Tensor, masks: TokenMasks | None) -> Draw:
        draw = self._sampler.draw(slots, logits, masks)
        self._slots.last_tokens.index_copy_(0, draw.slots, draw.ids)
        return draw if self._device.type == "cpu" else _to_host(draw)


def _to_host(draw: Draw) -> Draw:
    """Start copying to pinned memory; the values have arrived when the step is done by its clock."""
    scores = draw.logprobs
    if scores is not None:
        scores = Logprobs(*(part.to("cpu", non_blocking=True) for part in (scores.chosen, scores.top_ids, scores.top)))
    return Draw(draw.ids.to("cpu", non_blocking=True), draw.slots, scores, draw.logprob_rows, draw.logprob_counts)


def _slot_tokens(slots: tuple[int, ...], draw: Draw) -> tuple[SlotTokens, ...]:
    ids = draw.ids.tolist()
    if draw.logprobs is None:
        return tuple([SlotTokens(slot, (token,)) for slot, token in zip(slots, ids, strict=True)])
    scores = draw.logprobs
    chosen, top_ids, top = scores.chosen.tolist(), scores.top_ids.tolist(), scores.top.tolist()
    entries: dict[int, TokenLogprob] = {}
    for place, (row, count) in enumerate(zip(draw.logprob_rows, draw.logprob_counts, strict=True)):
        alternatives = tuple(zip(top_ids[place][:count], top[place][:count], strict=True))
        entries[row] = TokenLogprob(chosen[place], alternatives)
    return tuple(
        [
            SlotTokens(slot, (token,), (entries[row],) if row in entries else None)
            for row, (slot, token) in enumerate(zip(slots, ids, strict=True))
        ]
    )
