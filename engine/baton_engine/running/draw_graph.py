"""The end of captured steps as graphs, one per number of rows: the head and each row's greatest logit.

Its id becomes the slot's last token on the device, so that the next step need not wait for the host. Rows that ask for
more than that are drawn by the sampler from the same hidden states.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from baton_engine.running.capturing import Recorder, smallest_at_least
from baton_engine.running.graph_buffers import GraphBuffers
from baton_kernels.sampling.sampling import greedy, part_winners


class DrawGraphs:
    """Graphs that draw for the slots at the beginning of a step's numbers."""

    def __init__(self, buffers: GraphBuffers, recorder: Recorder, sizes: Iterable[int]) -> None:
        self._buffers = buffers
        buffers.numbers.fill_(buffers.padding_slot)
        # The largest first: the smaller ones fit into its memory.
        self._by_rows = smallest_at_least({size: self._capture(recorder, size) for size in sorted(sizes, reverse=True)})
        self.largest = len(self._by_rows) - 1

    @staticmethod
    def rehearse(buffers: GraphBuffers, sizes: Iterable[int]) -> None:
        """Launch every kernel that will be captured; the ids are not used."""
        for size in sizes:
            _greatest(buffers, size)

    def greatest(self, rows: int) -> Tensor:
        """The greatest logit's id [rows] int64 for each row of the step; they are the slots' last tokens now."""
        self._by_rows[rows].replay()
        return self._buffers.ids[:rows]

    def _capture(self, recorder: Recorder, size: int) -> torch.cuda.CUDAGraph:
        (graph,) = recorder.capture(lambda: self._draw(size), lambda _: self._draw(size))
        return graph

    def _draw(self, size: int) -> None:
        buffers = self._buffers
        _greatest(buffers, size)
        buffers.last_tokens.index_copy_(0, buffers.numbers[:size], buffers.ids[:size])


def _greatest(buffers: GraphBuffers, size: int) -> None:
    model, ids = buffers.model, buffers.ids[:size]
    logits = model.drawn_logits(buffers.hidden[:size])
    if model.vocabulary is None:
        greedy(logits, out=ids)
    else:
        ids.copy_(model.vocabulary.choose(*part_winners(logits, model.vocabulary.first, None)))
