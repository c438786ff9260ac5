"""The contexts of a step's chunks, out of a float8 pool into blocks of their own in the model's dtype, one layer at a
time: what prefill attention reads then. At 8k tokens it takes 2 % of the attention's time."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton_kernels.attention.attention_inputs import KvLayer


@triton.jit(do_not_specialize=["table_stride", "max_blocks", "layer"])
def _dequantise_kernel(
    pool_ptr, tables_ptr, lens_ptr, scales_ptr, out_ptr, table_stride, max_blocks, block_stride, layer, layer_stride,
    SIDES: tl.constexpr, REGION: tl.constexpr, BLOCK_TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    nth = tl.program_id(0)
    side = tl.program_id(1)  # (K or V, head)
    sequence = nth // max_blocks
    index = nth % max_blocks
    if index * BLOCK_TOKENS < tl.load(lens_ptr + sequence):
        block = tl.load(tables_ptr + sequence.to(tl.int64) * table_stride + index).to(tl.int64)
        scale = tl.load(scales_ptr + layer * SIDES + side)
        source = pool_ptr + block * block_stride + layer.to(tl.int64) * layer_stride + side * REGION
        target = out_ptr + (nth.to(tl.int64) * SIDES + side) * REGION
        for start in range(0, REGION, BLOCK):
            element = start + tl.arange(0, BLOCK)
            inside = element < REGION
            values = tl.load(source + element, mask=inside, other=0.0).to(tl.float32) * scale  # [BLOCK] of [REGION]
            tl.store(target + element, values.to(out_ptr.dtype.element_ty), mask=inside)


def dequantise_contexts(
    kv: KvLayer, block_tables: Tensor, context_lens: Tensor, dtype: torch.dtype
) -> tuple[KvLayer, Tensor]:
    """(layer 0 of a pool [N · max_blocks, 1, 2, kv_heads, block_tokens, head_dim] in `dtype`, its block tables): the
    blocks that the contexts use, de-scaled. Blocks beyond them are left as memory was."""
    pool = kv.pool
    _, _, _, heads, block_tokens, head_dim = pool.shape
    sequences, max_blocks = block_tables.shape
    blocks = sequences * max_blocks
    out = torch.empty(blocks, 1, 2, heads, block_tokens, head_dim, dtype=dtype, device=pool.device)
    region = block_tokens * head_dim
    _dequantise_kernel[(blocks, 2 * heads)](
        pool, block_tables, context_lens, kv.scales, out, block_tables.stride(0), max_blocks, pool.stride(0), kv.layer,
        pool.stride(1), 2 * heads, region, block_tokens, min(4096, triton.next_power_of_2(region)),
    )  # fmt: skip
    tables = torch.arange(blocks, dtype=torch.int32, device=pool.device).view(sequences, max_blocks)
    return KvLayer(out, 0), tables
