"""Decode steps as CUDA graphs: one pair of graphs per batch size, captured before the worker is ready.

A step of N rows replays the graph of the smallest size from N up. Rows beyond N are padding: slot `max_slots`, context
0, pool place -1, so they read and write nothing. The *body* runs the layers and leaves hidden states; the *tail* runs
the head, takes each row's greatest logit and keeps it as the slot's last token, so that the next step needs no word
from the host. Rows that ask for more than that are drawn by the sampler from the body's hidden states.

Everything that a graph reads lies at a fixed place: block tables by slot, and one array of the step's row numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from baton_engine.model.decoder import Decoder
from baton_engine.model.layers.attention import StepRows
from baton_engine.running.slot_state import DecodeInputs
from baton_engine.running.upload import upload
from baton_engine.scheduling.step_plan import BlockUpdate
from baton_kernels.attention_inputs import DecodeRows
from baton_kernels.linear import recording
from baton_kernels.sampling import greedy

LARGEST: Final = 512
"""Larger batches run eagerly: their kernels take longer than their launches."""

_ROW_NUMBERS: Final = 4
"""Per row: slot, position, place in the pool, context length."""


def graph_sizes(max_slots: int) -> tuple[int, ...]:
    """Batch sizes to capture, ascending: dense where padding would cost most, up to max_slots or LARGEST."""
    dense = [*range(1, 9), *range(12, 33, 4), *range(40, 129, 8), *range(144, 257, 16), *range(288, LARGEST + 1, 32)]
    largest = min(max_slots, LARGEST)
    return (*(size for size in dense if size < largest), largest)


@dataclass(frozen=True, slots=True)
class _Captured:
    size: int
    body: torch.cuda.CUDAGraph
    tail: torch.cuda.CUDAGraph


class DecodeGraphs:
    """Graphs of one model over one pool. `last_tokens` is [max_slots + 1] int64: the last entry belongs to padding."""

    def __init__(
        self,
        model: Decoder,
        kv_pool: Tensor,
        last_tokens: Tensor,
        max_slots: int,
        max_blocks: int,
        sizes: Iterable[int],
    ) -> None:
        device = kv_pool.device
        self._model = model
        self._kv_pool = kv_pool
        self._last_tokens = last_tokens
        self._max_slots = max_slots
        self._max_blocks = max_blocks
        self._tables = torch.zeros(max_slots + 1, max_blocks, dtype=torch.int32, device=device)
        self.largest = max(sizes := tuple(sizes))
        self._numbers = torch.zeros(_ROW_NUMBERS * self.largest, dtype=torch.int64, device=device)
        self._hidden = torch.empty(self.largest, model.embedding.shape[1], dtype=model.embedding.dtype, device=device)
        self._ids = torch.zeros(self.largest, dtype=torch.int64, device=device)
        memory: Any = torch.cuda.graph_pool_handle()
        # The largest first: the smaller ones fit into its memory.
        captured = {size: self._capture(size, memory) for size in sorted(sizes, reverse=True)}
        self._by_rows = _smallest_at_least(captured)

    def set_blocks(self, updates: Sequence[BlockUpdate]) -> None:
        """Keep the tables on the device as the plan says; costs nothing when nothing changed."""
        if not updates:
            return
        # A later update of the same entry wins, as on the host: index_copy_ promises no order.
        entries = {update.slot * self._max_blocks + update.index: update.block for update in updates}
        packed = np.array((list(entries), list(entries.values())), dtype=np.int64)
        places, blocks = upload(packed, self._tables.device)
        self._tables.view(-1).index_copy_(0, places, blocks.int())

    def run(self, inputs: DecodeInputs) -> Tensor:
        """The layers over the rows: normed hidden states [N, hidden_size], valid until the next step."""
        rows = len(inputs.slots)
        captured = self._by_rows[rows]
        upload_numbers = upload(_padded(inputs, captured.size, self._max_slots), self._numbers.device)
        self._numbers[: upload_numbers.numel()].copy_(upload_numbers)
        captured.body.replay()
        return self._hidden[:rows]

    def greatest(self, rows: int) -> Tensor:
        """The greatest logit's id [rows] int64 for each row of the last `run`; they are the slots' last tokens now."""
        self._by_rows[rows].tail.replay()
        return self._ids[:rows]

    def _body(self, size: int) -> None:
        slots, positions, places, lens = self._numbers[: _ROW_NUMBERS * size].view(_ROW_NUMBERS, size)
        decode = DecodeRows(self._tables.index_select(0, slots), lens.int())
        rows = StepRows(positions, places, 0, None, decode)
        hidden = self._model.hidden_states(self._last_tokens.index_select(0, slots), rows, self._kv_pool)
        self._hidden[:size].copy_(hidden)

    def _tail(self, size: int) -> None:
        greedy(self._model.head(self._hidden[:size]), out=self._ids[:size])
        self._last_tokens.index_copy_(0, self._numbers[:size], self._ids[:size])

    def _capture(self, size: int, memory: Any) -> _Captured:
        """Only padding: nothing in the pool changes."""
        nothing = DecodeInputs(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
        self._numbers[: _ROW_NUMBERS * size].copy_(torch.from_numpy(_padded(nothing, size, self._max_slots)))
        return _Captured(size, _captured(lambda: self._body(size), memory), _captured(lambda: self._tail(size), memory))


def _captured(work: Callable[[], None], memory: Any) -> torch.cuda.CUDAGraph:
    """Run once, so that nothing is compiled while recording, then record."""
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with recording(), torch.cuda.stream(stream):
        work()
        graph.capture_begin(pool=memory, capture_error_mode="thread_local")
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph


def _smallest_at_least(captured: dict[int, _Captured]) -> tuple[_Captured, ...]:
    """By number of rows, 0 included."""
    ascending = sorted(captured)
    sizes = np.array(ascending)[np.searchsorted(ascending, np.arange(ascending[-1] + 1))]
    return tuple(captured[int(size)] for size in sizes)


def _padded(inputs: DecodeInputs, size: int, padding_slot: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """[_ROW_NUMBERS · size]: slots, positions, places and lengths, each with its padding behind it."""
    rows = len(inputs.slots)
    numbers = np.zeros((_ROW_NUMBERS, size), dtype=np.int64)
    numbers[0, rows:] = padding_slot
    numbers[2, rows:] = -1
    numbers[0, :rows] = inputs.slots
    numbers[1, :rows] = inputs.positions
    numbers[2, :rows] = inputs.places
    numbers[3, :rows] = inputs.positions + 1
    return numbers.reshape(-1)
