"""Times of the kernels' CPU paths on one core, compared with what they replace: `python -m bench kernels`.

Decode attention is compared with one step of a contiguous cache as `transformers` keeps it (append, then
scaled_dot_product_attention); prefill attention with scaled_dot_product_attention on contiguous K and V.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from bench.machine import this_machine
from torch.nn.functional import scaled_dot_product_attention

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer, PlacedRows, PrefillRows
from baton_kernels.attention.cpu.decode_attention import decode_index, paged_decode_attention_cpu
from baton_kernels.attention.cpu.prefill_attention import paged_prefill_attention_cpu
from baton_kernels.attention.cpu.rope_kv_write import rope_index, rope_kv_write_cpu
from baton_kernels.attention.decode_attention import paged_decode_attention
from baton_kernels.attention.prefill_attention import paged_prefill_attention
from baton_kernels.kv.kv_checksum import kv_checksums
from baton_kernels.kv.kv_copy import pack_kv, scatter_kv
from baton_kernels.kv.kv_units import UnitRange
from baton_kernels.sampling.sampling import greedy, sample
from baton_kernels.sampling.sampling_inputs import Draws, Truncation
from baton_kernels.sampling.truncation import mask_top_k_top_p_min_p

LAYERS, BLOCK_TOKENS = 2, 16
HEADS = [(12, 12, 64), (12, 4, 64), (4, 4, 32)]
"""(query heads, kv heads, head_dim): a 100M model, the same with grouped heads, a tiny model."""
LARGEST_CONTEXT_TOKENS = 20_000


def time_us(call: Callable[[], object], rounds: int = 20) -> float:
    """Median microseconds of a call, after three to warm up."""
    for _ in range(3):
        call()
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return median(seconds) * 1e6


def decode_times(heads: tuple[int, int, int], batch: int, context: int) -> str:
    q_heads, kv_heads, head_dim = heads
    blocks = context // BLOCK_TOKENS
    pool = torch.randn(batch * blocks, LAYERS, 2, kv_heads, BLOCK_TOKENS, head_dim)
    tables = torch.randperm(batch * blocks).view(batch, blocks).int()
    lens = torch.full((batch,), context, dtype=torch.int32)
    q = torch.randn(batch, q_heads, head_dim)
    kv, rows = KvLayer(pool, 1), DecodeRows(tables, lens)
    index_us = time_us(lambda: decode_index(pool, rows, q_heads))
    layer_us = time_us(lambda: paged_decode_attention_cpu(q, kv, rows, 0.1))
    compiled_us = time_us(lambda: paged_decode_attention(q, kv, rows, 0.1))
    past, new = torch.randn(batch, kv_heads, context - 1, head_dim), torch.randn(batch, kv_heads, 1, head_dim)

    def contiguous() -> torch.Tensor:
        key, value = torch.cat((past, new), 2), torch.cat((past, new), 2)
        return scaled_dot_product_attention(q[:, :, None], key, value, enable_gqa=q_heads != kv_heads)

    return (
        f"decode {heads} batch {batch} context {context}: index {index_us:.0f} µs a step, "
        f"attention {layer_us:.0f} µs a layer, compiled {compiled_us:.0f}, contiguous cache {time_us(contiguous):.0f}"
    )


def prefill_times(heads: tuple[int, int, int], queries: int, context: int) -> str:
    q_heads, kv_heads, head_dim = heads
    blocks = context // BLOCK_TOKENS
    pool = torch.randn(blocks, LAYERS, 2, kv_heads, BLOCK_TOKENS, head_dim)
    tables = torch.randperm(blocks)[None].int()
    starts, lens = torch.tensor([0, queries]).int(), torch.tensor([context]).int()
    q = torch.randn(queries, q_heads, head_dim)
    kv, rows = KvLayer(pool, 1), PrefillRows(tables, starts, lens)
    paged_us = time_us(lambda: paged_prefill_attention_cpu(q, kv, rows, 0.1), 5)
    compiled_us = time_us(lambda: paged_prefill_attention(q, kv, rows, 0.1), 5)
    line = f"prefill {heads} queries {queries} context {context}: attention {paged_us:.0f} µs a layer"
    line += f", compiled {compiled_us:.0f}"
    if queries < context:
        return line
    query, key, grouped = q.transpose(0, 1)[None], torch.randn(1, kv_heads, context, head_dim), q_heads != kv_heads
    dense_us = time_us(lambda: scaled_dot_product_attention(query, key, key, is_causal=True, enable_gqa=grouped), 5)
    return f"{line}, contiguous {dense_us:.0f}"


def rope_times(heads: tuple[int, int, int], tokens: int) -> str:
    q_heads, kv_heads, head_dim = heads
    pool = torch.zeros(tokens, LAYERS, 2, kv_heads, BLOCK_TOKENS, head_dim)
    angles = torch.rand(2048, head_dim)
    cos, sin = angles.cos(), angles.sin()
    qkv = torch.randn(tokens, (q_heads + 2 * kv_heads) * head_dim)
    places = torch.randperm(tokens * BLOCK_TOKENS)[:tokens]
    rows = PlacedRows(torch.randint(0, 2048, (tokens,)), places, cos, sin)
    index_us = time_us(lambda: rope_index(pool, rows))
    layer_us = time_us(lambda: rope_kv_write_cpu(qkv, KvLayer(pool, 1), rows, q_heads))
    return f"rope {heads} tokens {tokens}: index {index_us:.0f} µs a step, op {layer_us:.0f}"


def stream_times(heads: tuple[int, int, int], layers: int, unit_tokens: int) -> str:
    _, kv_heads, head_dim = heads
    pool = torch.randn(64, layers, 2, kv_heads, BLOCK_TOKENS, head_dim)
    blocks, units = torch.randperm(64)[:32], UnitRange(unit_tokens, 0, 32 * BLOCK_TOKENS // unit_tokens)
    stream = torch.empty(pool[:32].numel())
    sums = torch.empty(units.count, layers, 2, dtype=torch.int64)
    size = stream.numel() * 4
    calls = {
        "checksum": lambda: kv_checksums(pool, blocks, units),
        "pack": lambda: pack_kv(pool, blocks, units, stream),
        "pack + checksum": lambda: pack_kv(pool, blocks, units, stream, sums),
        "scatter": lambda: scatter_kv(stream, pool, blocks, units),
        "scatter + checksum": lambda: scatter_kv(stream, pool, blocks, units, sums),
    }
    rates = ", ".join(f"{name} {size / time_us(call, 9) / 1e3:.1f}" for name, call in calls.items())
    return f"KV {heads} layers {layers} unit {unit_tokens}, {size / 1e6:.0f} MB, GB/s: {rates}"


def sampling_times(rows: int, vocab: int) -> str:
    logits, ones, ids = torch.randn(rows, vocab) * 3, torch.ones(rows), torch.arange(rows)
    off, top_k = torch.zeros(rows), torch.zeros(rows, dtype=torch.int32)
    draws, truncation = Draws(ones, ids, ids, ids), Truncation(top_k, ones * 0.9, off)
    greedy_us = time_us(lambda: greedy(logits))
    draw_us = time_us(lambda: sample(logits, draws))
    top_p_us = time_us(lambda: mask_top_k_top_p_min_p(logits, ones, truncation))
    return f"sampling {rows} x {vocab}: greedy {greedy_us:.0f} µs, draw {draw_us:.0f}, top-p {top_p_us:.0f}"


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(this_machine())
    for heads in HEADS:
        for batch in (1, 8, 32):
            for context in (128, 512, 2048):
                if batch * context <= LARGEST_CONTEXT_TOKENS:
                    print(decode_times(heads, batch, context), flush=True)
        for queries, context in ((128, 128), (512, 512), (128, 2048)):
            print(prefill_times(heads, queries, context), flush=True)
        for tokens in (1, 32):
            print(rope_times(heads, tokens), flush=True)
    for layers, heads, unit_tokens in ((12, HEADS[0], 16), (12, HEADS[0], 8), (4, HEADS[2], 16)):
        print(stream_times(heads, layers, unit_tokens), flush=True)
    for rows, vocab in ((1, 512), (32, 512), (1, 32_000), (32, 32_000)):
        print(sampling_times(rows, vocab), flush=True)


if __name__ == "__main__":
    main()
