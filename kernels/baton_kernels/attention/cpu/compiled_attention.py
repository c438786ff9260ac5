"""Attention over the paged pool, compiled for one shape of heads: chunks of prompts and single decoding rows alike.

For each sequence and kv head the keys are transposed once into scratch, so that scores are computed for 32 keys at a
time. Up to 8 (position, query head) rows share every load of keys and values. A row's scores stay in scratch, its
softmax takes two passes over them. Nothing beyond a row's last visible key is read into a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from baton_kernels.attention.attention_inputs import KvLayer
from baton_kernels.compiled.emitter import F32, I64, LANES, VECTOR, Kernel, Pointer, Value, Variable
from baton_kernels.compiled.machine_code import compile_kernels, scratch, suits
from baton_kernels.compiled.vectors import exp, transpose

_ROWS = 8
_KEYS = 32
_LOWEST = -1e30
_NO_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True)
class HeadShape:
    q_heads: int
    kv_heads: int
    head_dim: int
    block_tokens: int


class CompiledAttention:
    """Attention of one shape."""

    def __init__(self, shape: HeadShape, with_sinks: bool) -> None:
        self._shape = shape
        (self._function,) = compile_kernels([_Attention(shape, with_sinks).kernel])

    def __call__(
        self,
        q: Tensor,
        kv: KvLayer,
        block_tables: Tensor,
        starts: Tensor,
        context_lens: Tensor,
        scale: float,
        window: int | None,
        out: Tensor | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Arguments as `PrefillRows` has them; rows of q may have gaps between them, those of `out` have none."""
        shape = self._shape
        out = q.new_empty(q.shape) if out is None else out
        reach = (block_tables.shape[1] * shape.block_tokens // _KEYS + 2) * _KEYS + LANES
        floats = (_ROWS + shape.head_dim) * reach + _ROWS * shape.head_dim
        layer_bytes = 2 * shape.kv_heads * shape.block_tokens * shape.head_dim * 4
        self._function(
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
            kv.pool.data_ptr() + kv.layer * layer_bytes,
            kv.pool.stride(0),
            block_tables.data_ptr(),
            block_tables.stride(0),
            starts.data_ptr(),
            context_lens.data_ptr(),
            context_lens.shape[0],
            window or _NO_WINDOW,
            scale,
            scratch(4 * floats),
            reach,
            0 if sinks is None else sinks.data_ptr(),
        )
        return out


def suits_attention(kv_pool: Tensor) -> bool:
    """Decide if compiled kernels, which take whole vectors, serve this pool. Otherwise torch's paths do."""
    block_tokens, head_dim = kv_pool.shape[4:]
    return head_dim % _KEYS == 0 and block_tokens % LANES == 0 and suits(kv_pool.dtype)


def compiled_attention(q: Tensor, kv_pool: Tensor, with_sinks: bool) -> CompiledAttention | None:
    """The kernel for these heads if it suits the pool."""
    if q.dtype != kv_pool.dtype or not suits_attention(kv_pool):
        return None
    _, _, _, kv_heads, block_tokens, head_dim = kv_pool.shape
    return _attention(HeadShape(q.shape[1], kv_heads, head_dim, block_tokens), with_sinks)


@lru_cache(maxsize=8)
def _attention(shape: HeadShape, with_sinks: bool) -> CompiledAttention:
    return CompiledAttention(shape, with_sinks)


@lru_cache(maxsize=4)
def single_row_starts(rows: int) -> Tensor:
    """0, 1, …, rows as int32: `query_starts` of decoding rows."""
    return torch.arange(rows + 1, dtype=torch.int32)


class _Attention:
    """Writes the kernel. Scratch: [8 + head_dim][reach] (scores of 8 rows, keys transposed), then 8 scaled queries."""

    def __init__(self, shape: HeadShape, with_sinks: bool) -> None:
        self.shape = shape
        self.with_sinks = with_sinks
        self.group = shape.q_heads // shape.kv_heads
        k = self.kernel = Kernel(
            "attention", q="*float", q_stride=I64, out="*float", pool="*float", block_stride=I64, tables="*i32",
            table_stride=I64, starts="*i32", contexts="*i32", count=I64, window=I64, scale="float", scratch="*float",
            reach=I64, sinks="*float",
        )  # fmt: skip
        self.scores = k.pointer("scratch")
        self.keys = self.scores + k["reach"] * _ROWS
        self.queries = self.keys + k["reach"] * shape.head_dim
        with k.loop(0, k["count"]) as n:
            self.begin = self._at("starts", n)
            self.context = self._at("contexts", n)
            chunk = self._at("starts", n + 1) - self.begin
            self.start = self.context - chunk
            self.rows = chunk * self.group
            self.table = k.pointer("tables") + n * k["table_stride"]
            seen_from = k.greatest(self.start - k["window"] + 1, 0)
            self.base = seen_from // shape.block_tokens * shape.block_tokens
            # A chunk of no rows has no last row to stand in for those beyond it.
            with k.when(self.rows > 0), k.loop(0, shape.kv_heads) as head:
                self._sequence(head)

    def _at(self, parameter: str, n: Value) -> Value:
        return (self.kernel.pointer(parameter) + n).load().to("sext", I64)

    def _block(self, position: Value) -> Pointer:
        """Point to the layer's K in the block that holds a position."""
        k = self.kernel
        block = (self.table + position // self.shape.block_tokens).load().to("sext", I64)
        return k.pointer("pool") + block * k["block_stride"]

    def _sequence(self, head: Value) -> None:
        k, group = self.kernel, self.group
        self._transpose_keys(head)
        few = min(_ROWS, 1 << (group - 1).bit_length())  # a decoding row's heads
        if few < _ROWS:
            with k.when(self.rows < few + 1):
                self._tile(head, k.constant(0, I64), few)
        with k.when(self.rows > (few if few < _ROWS else 0)), k.loop(0, self.rows, _ROWS) as first_row:
            self._tile(head, first_row, _ROWS)

    def _transpose_keys(self, head: Value) -> None:
        k, dim, block_tokens = self.kernel, self.shape.head_dim, self.shape.block_tokens
        with k.loop(self.base, self.context, block_tokens) as at:
            block = self._block(at) + head * (block_tokens * dim)
            with k.loop(0, block_tokens, LANES) as slot, k.loop(0, dim, LANES) as d:
                source = block + slot * dim + d
                target = self.keys + d * k["reach"] + (at - self.base) + slot
                columns = transpose(k, [(source + row * dim).load(LANES) for row in range(LANES)])
                for row, column in enumerate(columns):
                    (target + k["reach"] * row).store(column)

    def _row(self, head: Value, row: Value) -> tuple[Value, Value]:
        """(token of the chunk, query head) of one of a kv head's rows; the last row stands in for those beyond."""
        k = self.kernel
        row = k.least(row, self.rows - 1)
        return row // self.group, head * self.group + row % self.group

    def _tile(self, head: Value, first_row: Value, size: int) -> None:
        k, dim = self.kernel, self.shape.head_dim
        scale = k.splat(k["scale"])
        for row in range(size):
            token, q_head = self._row(head, first_row + row)
            source = k.pointer("q") + (self.begin + token) * k["q_stride"] + q_head * dim
            for d in range(0, dim, LANES):
                (self.queries + (row * dim + d)).store((source + d).load(LANES) * scale)
        # Keys count from base. Some row of the tile sees those in [first, seen), every row those in [whole, mixed).
        seen = self.start + self._row(head, first_row + (size - 1))[0] + 1 - self.base
        first = k.greatest(self.start + first_row // self.group - k["window"] + 1 - self.base, 0) // _KEYS * _KEYS
        whole = (k.greatest(seen - k["window"], 0) + (_KEYS - 1)) // _KEYS * _KEYS
        mixed = k.greatest((self.start + first_row // self.group + 1 - self.base) // _KEYS * _KEYS, whole)
        lowest = k.constant(_LOWEST, VECTOR)
        greatest = [k.variable(lowest) for _ in range(size)]
        self._score(size, first_row, (first, k.least(whole, seen)), greatest, is_mixed=True)
        self._score(size, first_row, (whole, k.least(mixed, seen)), greatest, is_mixed=False)
        self._score(size, first_row, (mixed, seen), greatest, is_mixed=True)
        inverses = self._softmax(greatest, (first, seen), head, first_row)
        for d in range(0, dim, _KEYS):
            self._weigh_values(head, first_row, inverses, first, seen, d)

    def _score(
        self, size: int, first_row: Value, keys: tuple[Value, Value], greatest: list[Variable], *, is_mixed: bool
    ) -> None:
        """Scores of all rows for some keys; in mixed ones those that a row does not see are lowest."""
        k, dim = self.kernel, self.shape.head_dim
        with k.loop(*keys, _KEYS) as at:
            scores = self._sums(size)
            with k.loop(0, dim) as feature:
                queries = [self.queries + feature + row * dim for row in range(size)]
                self._accumulate(scores, self.keys + feature * k["reach"] + at, queries)
            for row in range(size):
                visible = [score.value for score in scores[row]]
                if is_mixed:
                    visible = [self._visible(first_row + row, at + LANES * half, visible[half]) for half in (0, 1)]
                for half in (0, 1):
                    (self.scores + k["reach"] * row + at + LANES * half).store(visible[half])
                greatest[row].value = k.greatest(greatest[row].value, k.greatest(visible[0], visible[1]))

    def _visible(self, row: Value, at: Value, scores: Value) -> Value:
        k = self.kernel
        lowest = k.constant(_LOWEST, VECTOR)
        end = self.start + k.least(row, self.rows - 1) // self.group + 1 - self.base
        ended = k.select(k.first_lanes(end - at), scores, lowest)
        return k.select(k.first_lanes(end - k["window"] - at), lowest, ended)

    def _sums(self, size: int) -> list[tuple[Variable, Variable]]:
        zero = self.kernel.constant(0.0, VECTOR)
        return [(self.kernel.variable(zero), self.kernel.variable(zero)) for _ in range(size)]

    def _accumulate(self, sums: list[tuple[Variable, Variable]], row: Pointer, factors: list[Pointer]) -> None:
        """Every row's sums += its factor · 32 elements."""
        k = self.kernel
        halves = row.load(LANES), (row + LANES).load(LANES)
        for row_sums, factor in zip(sums, factors, strict=True):
            spread = k.splat(factor.load())
            for total, half in zip(row_sums, halves, strict=True):
                total.value = k.fma(spread, half, total.value)

    def _softmax(
        self, greatest: list[Variable], keys: tuple[Value, Value], head: Value, first_row: Value
    ) -> list[Value]:
        """Scores become weights, 0 where a row sees nothing. Every row's inverse of their sum."""
        k = self.kernel
        tops = [k.splat(k.maximum(row.value)) for row in greatest]
        totals = [k.variable(k.constant(0.0, VECTOR)) for _ in greatest]
        if self.with_sinks:
            for row, (top, total) in enumerate(zip(tops, totals, strict=True)):
                _, q_head = self._row(head, first_row + row)
                over = k.splat((k.pointer("sinks") + q_head).load()) - top
                # Each lane holds its share of the weight. Beyond e^80 the values weigh nothing.
                total.value = exp(k, k.select(over < 80.0, over, 80.0)) * k.constant(1.0 / LANES, VECTOR)
        with k.loop(*keys, LANES) as at:
            for row, (top, total) in enumerate(zip(tops, totals, strict=True)):
                scores = self.scores + k["reach"] * row + at
                weights = exp(k, scores.load(LANES) - top)
                scores.store(weights)
                total.value = total.value + weights
        sums = [k.total(total.value) for total in totals]
        return [k.select(whole.equals(0.0), whole, k.constant(1.0, F32) / whole) for whole in sums]

    def _weigh_values(
        self, head: Value, first_row: Value, inverses: list[Value], first: Value, seen: Value, d: int
    ) -> None:
        """32 dimensions of the output of all rows."""
        k, shape, block_tokens, size = self.kernel, self.shape, self.shape.block_tokens, len(inverses)
        sums = self._sums(size)
        with k.loop(first // block_tokens * block_tokens, seen, block_tokens) as at:
            values = self._block(at + self.base) + (head + shape.kv_heads) * (block_tokens * shape.head_dim) + d
            slots = (k.greatest(first - at, 0), k.least(seen - at, k.constant(block_tokens, I64)))
            with k.loop(*slots) as slot:
                weights = [self.scores + k["reach"] * n + at + slot for n in range(size)]
                self._accumulate(sums, values + slot * shape.head_dim, weights)
        for n in range(size):
            with k.when(self.rows > first_row + n):
                token, q_head = self._row(head, first_row + n)
                target = k.pointer("out") + ((self.begin + token) * shape.q_heads + q_head) * shape.head_dim + d
                factor = k.splat(inverses[n])
                for half in (0, 1):
                    (target + LANES * half).store(sums[n][half].value * factor)
