"""All graphs of one runner: the steps that they serve, and the path of such a step through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from baton_engine.memory.kv_pool import KvPool
from baton_engine.model.decoder import Decoder
from baton_engine.running.captured_steps import CapturedSteps
from baton_engine.running.capturing import Recorder
from baton_engine.running.decode_graph import DecodeGraphs
from baton_engine.running.draw_graph import DrawGraphs
from baton_engine.running.drawing import DrawingRows
from baton_engine.running.mixed_graph import MixedGraphs
from baton_engine.running.slot_state import SlotState
from baton_engine.running.step_shapes import StepShape, part_ends
from baton_engine.scheduling.step_plan import BlockUpdate, StepPlan
from baton_kernels.ahead.compiling import compiled_together


class StepGraphs:
    """The graphs of a worker that decodes, computes prompts for other workers, or does both; captured when created."""

    def __init__(  # noqa: PLR0913 - one call site, the switches keyword only
        self,
        model: Decoder,
        pool: KvPool,
        last_tokens: Tensor,
        max_blocks: int,
        *,
        decodes: bool,
        hands_over: bool,
        rehearse: Callable[[], None] | None,
        ended: Callable[[str], None],
    ) -> None:
        """`last_tokens` is [slots + 1] int64: the last entry belongs to padding. `decodes` and `hands_over` are as in
        `StepShapes`. `rehearse` launches everything else that runs before the worker is ready, so that all kernels are
        compiled together; None: all are compiled already. `ended`: as for `ModelRunner`.
        """
        steps = CapturedSteps(model, pool.tensor, last_tokens, max_blocks, decodes=decodes, hands_over=hands_over)
        self._shapes, self._buffers, sizes = steps.shapes, steps.buffers, steps.sizes
        recorder, geometry = Recorder(), pool.geometry

        def ends(shape: StepShape) -> tuple[int, ...]:
            layer_token_bytes = geometry.token_bytes // geometry.layers
            if shape.decode_rows or (decodes and not hands_over):  # its KV, or most of it, stays on this worker
                return (geometry.model_layers,)
            return part_ends(shape.rows, geometry.model_layers, layer_token_bytes)

        if rehearse is not None:
            with compiled_together():
                steps.rehearse()
                rehearse()
        ended("kernels")
        self._mixed = MixedGraphs(self._buffers, recorder, {shape: ends(shape) for shape in self._shapes.all})
        self._decode = DecodeGraphs(self._buffers, recorder, sizes) if decodes else None
        self._draw = DrawGraphs(self._buffers, recorder, sizes)
        ended("graphs")

    def set_blocks(self, updates: Sequence[BlockUpdate]) -> None:
        self._buffers.set_blocks(updates)

    def hidden_states(
        self,
        plan: StepPlan,
        drawing: DrawingRows | None,
        state: SlotState,
        written: Callable[[int], None] | None,
    ) -> Tensor | None:
        """Run the layers of a step. Returns the hidden states of the rows that draw, valid until the next step; None,
        and nothing is done, when no graph fits.

        `drawing`: the rows that draw in a step with prompts. `written`: as in `Decoder.hidden_states`; called where a
        graph is cut.
        """
        if drawing is None:
            if self._decode is None or len(plan.decode) > self._decode.largest:
                return None
            self._decode.run(state.decode_inputs(plan.decode))
            return self._buffers.hidden[: len(plan.decode)]
        shape = self._shapes.least(len(plan.decode), [len(chunk.tokens) for chunk in plan.prefill])
        if shape is None or any(chunk.targets for chunk in plan.prefill):
            return None
        self._mixed.run(shape, state.decode_inputs(plan.decode), state.chunk_inputs(plan.prefill), drawing, written)
        return self._buffers.hidden[: len(drawing.rows)]

    def draws(self, rows: int) -> bool:
        """True when `greatest` can draw for this many rows."""
        return rows <= self._draw.largest

    def greatest(self, rows: int) -> Tensor:
        """The greatest logit's id [rows] int64 for each row of the last step; they are the slots' last tokens now."""
        return self._draw.greatest(rows)
