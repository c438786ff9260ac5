"""Kernels compile for a Hopper GPU with the Triton that is installed, where no such GPU is.

No interpreter runs those in Gluon, so without this a name that a new Triton lacks would be found by the first worker on
a GPU. Nor has an interpreter a bound for tiles. In a process of its own: here kernels are interpreted. Other kernels of
mixtures of experts are compiled by `tests/engine/running/test_experts_compiled_before_ready.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_testing.kernels.machine_code import disassembled, find_unset_descriptors
from baton_testing.processes.prepared import Prepared

HOPPER = """
import types
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

class Hopper:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Hopper())
torch.cuda.get_device_capability = lambda *device: (9, 0)
torch.cuda.get_device_properties = lambda *device: types.SimpleNamespace(multi_processor_count=132)
from baton_kernels.ahead.compiling import compiled_together

names = []
knobs.compilation.listener = lambda src, **found: names.append(src.name)

def rows(*shape, dtype=torch.bfloat16):
    return torch.zeros(*shape, dtype=dtype)

def compile_all():
{calls}

with compiled_together():
    compile_all()
print(len(names), *sorted(set(names)))
"""

CALLS = {
    "dense": (
        """
from baton_kernels.dense.gpu.linear import default_config
from baton_kernels.dense.gpu.streamed_linear import streamed_linear
for count, gated in ((1, False), (64, True), (128, False)):
    streamed_linear(rows(count, 1024), rows(2048, 1024), None, default_config(count, 2048, 1024, gated), gated)
""",
        {"_streamed_kernel"},
    ),
    "prefill attention": (
        """
from baton_kernels.attention.attention_inputs import KvLayer, PrefillRows
from baton_kernels.attention.gpu.prefill_attention_hopper import paged_prefill_attention_hopper
lengths = torch.tensor([0, 64], dtype=torch.int32)
chunk = PrefillRows(torch.zeros(1, 4, dtype=torch.int32), lengths, lengths[1:])
for d, window, sinks in ((128, None, None), (256, 128, rows(8))):
    kv = KvLayer(rows(4, 1, 2, 2, 64, d), 0)
    paged_prefill_attention_hopper(rows(64, 8, d), kv, chunk, 0.1, window, sinks=sinks)
""",
        {"_prefill_hopper_kernel"},
    ),
    "sums over ranks": (
        """
from baton_kernels.exchange.gpu.pushed_sum import pushed_sum, pushed_sum_norm
from baton_kernels.exchange.rank_exchange import rank_gather, rank_sum, rank_sum_norm
from baton_kernels.exchange.rank_region import STATE_WORDS, RankRegion
state = torch.zeros(STATE_WORDS, dtype=torch.int32)
for ranks in (2, 8):
    region = RankRegion(1, ranks, torch.zeros(ranks, dtype=torch.int64), state)
    for dtype in (torch.bfloat16, torch.float32):
        for count in (1, 1000):
            rank_sum(rows(count, 1024, dtype=dtype), region)
        row = rows(3, 1024, dtype=dtype)
        rank_sum_norm(row, row, rows(1024), 1e-5, region)
        pushed_sum(row.view(-1), row.view(-1), region)
        pushed_sum_norm(row, row, rows(1024), 1e-5, region)
    rank_gather(rows(4, 1, dtype=torch.int64), region)
""",
        {
            *("_gather_kernel", "_one_shot_kernel", "_sum_norm_kernel", "_two_shot_kernel"),
            *("_pushed_sum_kernel", "_pushed_sum_norm_kernel"),
        },
    ),
    "seats of the most rows that a worker may have": (
        """
from baton_kernels.attention.gpu.decode_seats import deal_seats
for sequences in (5, 256, 4096):
    deal_seats(torch.ones(sequences, dtype=torch.int32), 66, 64, 32)
""",
        {"_seats_kernel"},
    ),
    "8 bits": (
        """
from baton_kernels.dense.gpu.dequantise import dequantise_triton
from baton_kernels.dense.gpu.quantised_linear import quantised_linear_cuda, quantised_mlp_cuda
from baton_kernels.dense.quantised_weight import pack_fp8, pack_int8
codes = rows(1024, 1024, dtype=torch.int8)
floats = codes.view(torch.float8_e4m3fn)
ones = torch.ones
packed = [pack_int8(codes, ones(1024)), pack_int8(codes, ones(1024, 8)), pack_fp8(floats, ones(1)),
          pack_fp8(floats, ones(8, 8)), pack_int8(codes, ones(1024), rounds_inputs=True)]
for weight in packed:
    for count, gated in ((1, False), (64, True)):
        quantised_linear_cuda(rows(count, 1024), weight, None, gated)
    dequantise_triton(weight, torch.bfloat16)
for count in (65, 1000):
    quantised_mlp_cuda(rows(count, 1024), packed[-1], None, packed[-1], None)
many_columns = pack_fp8(rows(1024, 4096, dtype=torch.int8).view(torch.float8_e4m3fn), ones(8, 32))
quantised_linear_cuda(rows(100, 4096), many_columns, None, False)
""",
        {
            "_block_kernel",
            "_bytes_kernel",
            "_int8_kernel",
            "_parts_kernel",
            "_quantised_kernel",
            "_rows_kernel",
            "_scale_kernel",
            "_swiglu_kernel",
        },
    ),
    "4 bits": (
        """
from baton_kernels.dense.gpu.dequantise import dequantise_triton
from baton_kernels.dense.gpu.quantised_linear import quantised_linear_cuda
from baton_kernels.dense.quantised_weight import pack_int4
codes, scale = torch.zeros(8192, 4096, dtype=torch.uint8), torch.ones(8192, 32)
for weight in (pack_int4(codes, scale), pack_int4(codes, scale, torch.zeros(8192, 32))):
    for count, gated in ((1, False), (64, True), (128, False)):
        quantised_linear_cuda(rows(count, 4096), weight, None, gated)
    dequantise_triton(weight, torch.bfloat16)
""",
        {"_add_kernel", "_int4_kernel", "_quantised_kernel"},
    ),
    "experts with rows of 8 bits, one scale a channel of floats": (
        """
from baton_kernels.experts.expert_inputs import QuantisedStacks, Routing
from baton_kernels.experts.gpu.rounded_stacks import rounded_experts_gluon
from baton_kernels.dense.quantised_stack import QuantisedStack
gate_up = QuantisedStack(rows(8, 1024, 256, dtype=torch.uint8), torch.ones(8, 1024), 256)
down = QuantisedStack(rows(8, 256, 512, dtype=torch.uint8), torch.ones(8, 256), 512)
routing = Routing(rows(3, 2, dtype=torch.float32), rows(3, 2, dtype=torch.int64))
rounded_experts_gluon(rows(3, 256), QuantisedStacks(gate_up, down), routing)
""",
        {"_rounded_stack_kernel", "_rows_kernel", "_sort_kernel", "_sum_kernel"},
    ),
    "experts in MXFP4": (
        """
from baton_kernels.dense.mxfp4_weight import pack_mxfp4
from baton_kernels.experts.expert_inputs import Mxfp4Stacks, Routing
from baton_kernels.experts.gpu.streamed_mxfp4 import mxfp4_experts
def codes(*shape):
    return rows(4, *shape, dtype=torch.uint8)
def packed(features, columns):
    return pack_mxfp4(codes(features, columns), codes(features, columns // 32))
for hidden, inner in ((2880, 96), (320, 160)):
    gate_up, down = packed(2 * inner, hidden), packed(hidden, inner)
    stacks = Mxfp4Stacks(gate_up, rows(4, 2 * inner), down, rows(4, hidden), 7.0, 1.7)
    for tokens in (20, 300):
        routing = Routing(rows(tokens, 1, dtype=torch.float32), rows(tokens, 1, dtype=torch.int64))
        mxfp4_experts(rows(tokens, hidden), stacks, routing)
""",
        {"_product_kernel", "_sort_kernel", "_sum_kernel"},
    ),
    "experts of 8 and 4 bits": (
        """
from baton_kernels.experts.expert_inputs import QuantisedStacks, Routing
from baton_kernels.experts.gpu.streamed_stacks import quantised_experts_gluon
from baton_kernels.dense.quantised_stack import QuantisedStack
channels, blocks = ((8, 1024), (8, 256)), ((8, 8, 2), (8, 2, 4))
for dtype, scales, tokens in ((torch.int8, channels, 700), (torch.uint8, blocks, 40)):
    gate_up = QuantisedStack(rows(8, 1024, 256, dtype=dtype), torch.ones(scales[0]), 256)
    down = QuantisedStack(rows(8, 256, 512, dtype=dtype), torch.ones(scales[1]), 512)
    routing = Routing(rows(tokens, 2, dtype=torch.float32), rows(tokens, 2, dtype=torch.int64))
    quantised_experts_gluon(rows(tokens, 256), QuantisedStacks(gate_up, down), routing)
gate_up = QuantisedStack(rows(8, 1024, 128, dtype=torch.uint8), rows(8, 2, 1024), 256, 4, rows(8, 2, 1024))
down = QuantisedStack(rows(8, 256, 256, dtype=torch.uint8), rows(8, 4, 256), 512, 4)
quantised_experts_gluon(rows(40, 256), QuantisedStacks(gate_up, down), routing)
""",
        {"_stack_kernel", "_sum_kernel"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_kernels_compile(name: str, compiler: Prepared, tmp_path: Path) -> None:
    calls, kernels = CALLS[name]
    program = HOPPER.replace("{calls}", "".join(f"    {line}\n" for line in calls.strip().splitlines()))
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ended = compiler.run_to_end(["-c", program], 300, environment)
    assert ended.code == 0, ended.stderr
    assert kernels <= set(ended.stdout.split()[1:]), ended.stdout
    unset = {path.stem: find_unset_descriptors(disassembled(path)) for path in tmp_path.rglob("*.cubin")}
    assert not any(unset.values()), unset
