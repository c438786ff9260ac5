"""The steps that a runner captures, and the memory that they read and write."""

from __future__ import annotations

from torch import Tensor

from baton_engine.model.decoder import Decoder
from baton_engine.running.decode_graph import DecodeGraphs, graph_sizes, row_numbers
from baton_engine.running.draw_graph import DrawGraphs
from baton_engine.running.graph_buffers import GraphBuffers
from baton_engine.running.mixed_graph import MixedGraphs
from baton_engine.running.padded_step import count_numbers
from baton_engine.running.step_shapes import CHUNKS, StepShapes
from baton_kernels.dense.linear import recording


class CapturedSteps:
    """The captured steps of one worker, which decodes, computes prompts for other workers, or does both."""

    def __init__(
        self,
        model: Decoder,
        kv_pool: Tensor,
        last_tokens: Tensor,
        max_blocks: int,
        *,
        decodes: bool,
        hands_over: bool,
    ) -> None:
        """`last_tokens` is [slots + 1] int64: the last entry belongs to padding. `decodes` and `hands_over` are as in
        `StepShapes`."""
        slots = last_tokens.numel() - 1
        self.decodes = decodes
        self.shapes = StepShapes(slots, decodes=decodes, hands_over=hands_over)
        self.sizes = graph_sizes(slots) if decodes else tuple(range(1, CHUNKS + 1))
        """Numbers of rows that are captured: of decode steps, if the worker decodes, and of draws."""
        draws = max(*self.sizes, *(shape.draws for shape in self.shapes.all))
        draws += draws % 2
        numbers = max(
            row_numbers(model.kv_groups) * max(self.sizes),
            *(count_numbers(shape, draws, model.kv_groups) for shape in self.shapes.all),
        )
        self.buffers = GraphBuffers(model, kv_pool, last_tokens, max_blocks, draws=draws, numbers=numbers)

    def rehearse(self) -> None:
        """Launch every kernel that will be captured."""
        with recording():
            MixedGraphs.rehearse(self.buffers, self.shapes.all)
            if self.decodes:
                DecodeGraphs.rehearse(self.buffers, self.sizes)
            DrawGraphs.rehearse(self.buffers, self.sizes)
