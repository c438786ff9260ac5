"""The GPU kernels alone, in CUDA graphs over data larger than the L2 cache, with the libraries' times and the goals."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import torch
from bench.engine.gpu_model import BLOCK_TOKENS, GPU, graph_us
from bench.results import Cell
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from baton_kernels.attention.attention_inputs import DecodeRows, KvLayer, PrefillRows
from baton_kernels.attention.decode_attention import paged_decode_attention
from baton_kernels.attention.gpu.prefill_attention import paged_prefill_attention_triton
from baton_kernels.attention.prefill_attention import paged_prefill_attention
from baton_kernels.dense.gpu.linear import choose
from baton_kernels.dense.gpu.streamed_linear import StreamedConfig
from baton_kernels.dense.linear import linear, recording
from baton_kernels.dense.quantised_linear import quantised_linear
from baton_kernels.dense.quantised_weight import GROUP, QuantisedWeight, pack_fp8, pack_int4
from baton_kernels.kv.kv_copy import scatter_kv
from baton_kernels.kv.kv_scales import KV_FP8
from baton_kernels.kv.kv_units import UnitRange
from baton_kernels.sampling.sampling import greedy, sample
from baton_kernels.sampling.sampling_inputs import Draws, Truncation
from baton_kernels.sampling.truncated_draw import truncated_draw

Row = dict[str, Cell]
Q_HEADS, KV_HEADS, HEAD_DIM, VOCAB = 32, 8, 128, 128_256
LAYERS = 8
DECODE_GOALS = {(1, 1024): None, (1, 8192): 14, (32, 1024): None, (32, 4096): 128, (64, 8192): 480, (128, 1024): 126}
FP8_GOALS = {"32 x 4096": 82}
MIXED, MIXED_BATCHES = (60, 2_048), (64, 128, 256)
"""Contexts of a batch that differ, from and to."""
PREFILL_GOALS = {1024: None, 2048: None, 4096: 415, 8192: 460, 16384: None, 32768: None}
PRODUCTS = {
    "qkv": (6144, 4096, False),
    "output": (4096, 4096, False),
    "gate_up": (28672, 4096, True),
    "down": (4096, 14336, False),
}
"""Llama-3.1-8B's: (features, columns, gated)."""


def row(what: str, size: str, value: float, unit: str, goal: float | None, peer: str = "") -> Row:
    print(f"{what} {size}: {value:.1f} {unit}, goal {goal}{', ' + peer if peer else ''}", flush=True)
    return {"what": what, "size": size, "measured": round(value, 2), "unit": unit, "goal": goal, "beside": peer}


def _pool(blocks: int, dtype: torch.dtype) -> Tensor:
    pool = torch.empty(blocks, LAYERS, 2, KV_HEADS, BLOCK_TOKENS, HEAD_DIM, dtype=torch.bfloat16, device=GPU).normal_()
    return pool if dtype == torch.bfloat16 else pool.to(dtype)


def _tables(batch: int, context: int, blocks: int) -> Tensor:
    used = -(-context // BLOCK_TOKENS)
    tables = torch.zeros(batch, 516, dtype=torch.int32, device=GPU)
    tables[:, :used] = torch.randperm(blocks, device=GPU)[: batch * used].view(batch, used).int()
    return tables


def decode_attention(kv_dtype: torch.dtype) -> Iterator[Row]:
    blocks = 8_300
    pool, is_fp8 = _pool(blocks, kv_dtype), kv_dtype == KV_FP8
    scales = torch.ones(LAYERS, 2, KV_HEADS, device=GPU) if is_fp8 else None
    draw = random.Random(5)
    contexts = {f"{batch} x {context}": ([context] * batch, goal) for (batch, context), goal in DECODE_GOALS.items()}
    for batch in MIXED_BATCHES:
        contexts[f"{batch} x {MIXED[0]} to {MIXED[1]}"] = [draw.randint(*MIXED) for _ in range(batch)], None
    for size, (lengths, goal) in contexts.items():
        batch = len(lengths)
        tables = _tables(batch, max(lengths), blocks)
        rows = DecodeRows(tables, torch.tensor(lengths, dtype=torch.int32, device=GPU))
        q = torch.randn(batch, Q_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=GPU)

        def layers(q: Tensor = q, rows: DecodeRows = rows) -> None:
            for layer in range(LAYERS):
                paged_decode_attention(q, KvLayer(pool, layer, scales), rows, 0.088)

        us = graph_us(layers, LAYERS)
        rate = sum(lengths) * 2 * KV_HEADS * HEAD_DIM * pool.element_size() / us / 1e6
        wanted = FP8_GOALS.get(size) if is_fp8 else goal
        yield row(
            f"decode attention {'fp8' if is_fp8 else 'bf16'}",
            size,
            us,
            "µs",
            wanted,
            f"{rate:.2f} TB/s",
        )


def prefill_attention() -> Iterator[Row]:
    blocks = 1_200
    pool = _pool(blocks, torch.bfloat16)
    cases = [(tokens, tokens, goal) for tokens, goal in PREFILL_GOALS.items()] + [(8192, 32768, None)]
    for tokens, context, goal in cases:
        tables = _tables(1, context, blocks)
        lens = torch.tensor([context], dtype=torch.int32, device=GPU)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=GPU)
        q = torch.randn(tokens, Q_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=GPU)
        flop = 4 * (tokens * context - tokens**2 / 2) * Q_HEADS * HEAD_DIM
        rows = PrefillRows(tables, starts, lens)

        def tflops(attend: Callable[[int], Tensor], flop: float = flop) -> float:
            return flop / graph_us(lambda: [attend(layer) for layer in range(4)], 4) / 1e6

        def ours(layer: int, q: Tensor = q, rows: PrefillRows = rows) -> Tensor:
            return paged_prefill_attention(q, KvLayer(pool, layer), rows, 0.088)

        def plain(layer: int, q: Tensor = q, rows: PrefillRows = rows) -> Tensor:
            return paged_prefill_attention_triton(q, KvLayer(pool, layer), rows, 0.088)

        peer = f"plain Triton {tflops(plain):.0f}"
        if context == tokens:
            peer += f", cuDNN {tflops(_cudnn(q)):.0f} without pages"
        yield row("prefill attention", f"{tokens} of {context}", tflops(ours), "TFLOP/s", goal, peer)


def _cudnn(q: Tensor) -> Callable[[int], Tensor]:
    query = q[None].transpose(1, 2)
    key, value = (torch.randn_like(q[None, :, :KV_HEADS]).transpose(1, 2) for _ in range(2))

    def attend(_: int) -> Tensor:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return attend


def products() -> Iterator[Row]:
    for name, (features, columns, gated) in PRODUCTS.items():
        copies = max(3, int(1e9 / (features * columns * 2)))
        weights = [torch.randn(features, columns, dtype=torch.bfloat16, device=GPU) for _ in range(copies)]
        for rows in (1, 8, 32, 64, 128, 256, 512, 4096):
            yield _product(name, rows, weights, gated)


def _product(name: str, rows: int, weights: list[Tensor], gated: bool) -> Row:
    """One layer's after another's; the libraries' without the gate."""
    features, columns = weights[0].shape
    x = torch.randn(rows, columns, dtype=torch.bfloat16, device=GPU)
    with recording():
        way = choose(rows, features, columns, x.dtype, gated, x.device.index, True)
        us = graph_us(lambda: [linear(x, weight, None, gated) for weight in weights], len(weights))
    blas_us = graph_us(lambda: [functional.linear(x, weight) for weight in weights], len(weights))
    size = features * columns
    if rows <= 64:
        rate, unit, goal = size * 2 / us / 1e6, "TB/s", 3.4 if size < 30e6 else None
    else:
        rate, unit, goal = 2 * rows * size / us / 1e6, "TFLOP/s", 600 if rows == 256 else None
    taken = "streamed" if isinstance(way, StreamedConfig) else way
    return row(f"product {name}", f"{rows} rows", rate, unit, goal, f"{us:.1f} µs, {taken}; cuBLAS {blas_us:.1f} µs")


def quantised_products() -> Iterator[Row]:
    """Rates are of stored bytes, scales included."""
    for name, (features, columns, gated) in PRODUCTS.items():
        for form in ("fp8", "fp8 blocks", "int4", "int4 zeros"):
            copies = max(3, int(1e9 / (features * columns * (1 if "fp8" in form else 0.5))))
            weights = [_quantised(form, features, columns) for _ in range(copies)]
            for rows in (1, 8, 16, 32, 64, 128, 256):
                x = torch.randn(rows, columns, dtype=torch.bfloat16, device=GPU)

                def multiply(x: Tensor = x, weights: list[QuantisedWeight] = weights, gated: bool = gated) -> None:
                    for weight in weights:
                        quantised_linear(x, weight, None, gated)

                us = graph_us(multiply, copies)
                goal = (3.4 if "fp8" in form else 2.6) if rows <= 32 else None
                rate = weights[0].stored_bytes() / us / 1e6
                yield row(f"product {name} {form}", f"{rows} rows", rate, "TB/s", goal, f"{us:.1f} µs")


def _quantised(form: str, features: int, columns: int) -> QuantisedWeight:
    numbers = torch.randint(0, 127, (features, columns), dtype=torch.uint8, device=GPU)
    if "fp8" in form:
        shape = (-(-features // GROUP), -(-columns // GROUP)) if "blocks" in form else (features,)
        return pack_fp8(numbers.view(torch.float8_e4m3fn), torch.rand(shape, device=GPU) / 1e3)
    groups = (features, columns // GROUP)
    zeros = torch.randint(0, 16, groups, device=GPU) if "zeros" in form else None
    return pack_int4(numbers % 16, torch.rand(groups, device=GPU) / 1e2, zeros)


def draws() -> Iterator[Row]:
    for rows in (1, 32, 256):
        for name, draw in _draws(rows).items():
            goal = 150 if rows == 256 else 15 if name == "greedy" else None
            yield row(f"draw {name}", f"{rows} x {VOCAB}", graph_us(draw, 1), "µs", goal)


def _draws(rows: int) -> dict[str, Callable[[], Tensor]]:
    logits = (torch.randn(rows, VOCAB, device=GPU) * 2).bfloat16()
    ones, zeros, ids = torch.ones(rows, device=GPU), torch.zeros(rows, device=GPU), torch.arange(rows, device=GPU)
    draws = Draws(ones * 0.8, ids, ids, ids)

    def truncated(top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Callable[[], Tensor]:
        truncation = Truncation((zeros + top_k).int(), ones * top_p, zeros + min_p)
        return lambda: truncated_draw(logits, truncation, draws)

    return {
        "greedy": lambda: greedy(logits),
        "temperature": lambda: sample(logits, draws),
        "top-p 0.95": truncated(top_p=0.95),
        "top-p 0.5": truncated(top_p=0.5),
        "top-k 50": truncated(top_k=50),
        "top-k 50, top-p 0.9": truncated(top_k=50, top_p=0.9),
        "min-p 0.05": truncated(min_p=0.05),
    }


def kv_stream() -> Iterator[Row]:
    pool = _pool(1_024, torch.bfloat16)
    blocks = torch.randperm(1_024, device=GPU)
    stream = torch.empty(pool[:512].numel(), dtype=torch.bfloat16, device=GPU)
    sums = torch.empty(512, LAYERS, 2, dtype=torch.int64, device=GPU)
    us = graph_us(lambda: scatter_kv(stream, pool, blocks, UnitRange(BLOCK_TOKENS, 0, 512), sums), 1)
    yield row("scatter with checksum", "512 blocks", stream.numel() * 2 / us / 1e6, "TB/s", 1.9)
