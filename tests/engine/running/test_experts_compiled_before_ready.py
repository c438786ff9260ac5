"""A mixture of experts launches other kernels for other numbers of tokens. All of them are compiled before a worker is
ready. No GPU is needed: kernels are compiled, not launched. In a process of its own: here kernels are interpreted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_testing.processes.prepared import Prepared

PROGRAM = """
import sys
import torch
from baton_engine.model.layers.experts import Router, StackedExperts
from baton_engine.running.warm_up import EXPERT_TOKENS, run_experts
from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.ahead.described_gpu import GPUS, META, compiling_for
from baton_kernels.experts.expert_inputs import Mxfp4Stacks, PlainStacks, QuantisedStacks
from baton_kernels.ahead.kernel_folder import CompiledHere, use_folder
from baton_kernels.dense.mxfp4_stack import Mxfp4Stack
from baton_kernels.dense.quantised_stack import QuantisedStack

folder, form, count, per_token = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
H, F = 256, 384

def blank(*shape, dtype=torch.bfloat16):
    return torch.empty(*shape, dtype=dtype, device=META)

def eight(features, columns):
    shape = (features // 128, columns // 128) if form == "block" else (features,)
    dtype = torch.int8 if form == "int8" else torch.uint8
    scales = blank(count, *shape, dtype=torch.float32)
    return QuantisedStack(blank(count, features, columns, dtype=dtype), scales, columns, rounds_inputs=True)

def mxfp4(features, columns):
    lines = -(-columns // 128)
    values = blank(count, lines, features, 64, dtype=torch.uint8)
    return Mxfp4Stack(values, blank(count, lines, features, 4, dtype=torch.uint8), columns)

def four(features, columns):
    values = blank(count, features, -(-columns // 256) * 128, dtype=torch.uint8)
    return QuantisedStack(values, blank(count, columns // 128, features), columns, 4)

router = Router(blank(count, H), None, per_token, True, blank(1, dtype=torch.int32))
if form == "bf16":
    stacks = PlainStacks(blank(count, 2 * F, H), blank(count, H, F))
elif form == "mxfp4":
    stacks = Mxfp4Stacks(mxfp4(2 * F, H), blank(count, 2 * F), mxfp4(H, F), blank(count, H), 7.0, 1.702)
else:
    stack = four if form == "int4" else eight
    stacks = QuantisedStacks(stack(2 * F, H), stack(H, F))
block = StackedExperts(router, stacks)

from pathlib import Path
use_folder(Path(folder))
here = CompiledHere()
here.watch()
torch.set_grad_enabled(False)
with compiling_for(GPUS["h100"]):
    with compiled_together():
        run_experts(block, EXPERT_TOKENS)
    before = len(here.names)
    print(*here.names)
    with compiled_together():
        for tokens in (*range(1, 70), *range(70, EXPERT_TOKENS, 127), 1023, 1025, 2001, 4096, 4097, EXPERT_TOKENS):
            block(blank(tokens, H))
print(*here.names[before:])
"""

PRODUCTS = {
    "bf16": "_product_kernel",
    "mxfp4": "_product_kernel",
    "int4": "_stack_kernel",
    "block": "_rounded_stack_kernel",
    "int8": "_rounded_stack_kernel",
}


@pytest.mark.parametrize(
    ("form", "count", "per_token"),
    [("bf16", 128, 8), ("int4", 8, 2), ("block", 128, 8), ("int8", 512, 10), ("mxfp4", 128, 4)],
)
def test_experts_of_any_number_of_tokens_are_compiled_once(
    form: str, count: int, per_token: int, compiler: Prepared, tmp_path: Path
) -> None:
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "own")}
    arguments = ["-c", PROGRAM, str(tmp_path / "kernels"), form, str(count), str(per_token)]
    ended = compiler.run_to_end(arguments, 300, environment)
    assert ended.code == 0, ended.stderr
    start, late, *_ = [*ended.stdout.splitlines(), ""]
    assert {"_sort_kernel", "_place_kernel", PRODUCTS[form]} <= set(start.split())
    assert ("_rounded_stack_kernel" in start.split()) == (form in ("block", "int8"))
    assert (start.split().count("_token_down_kernel"), start.split().count("_token_gate_up_kernel")) == (
        (1, 1) if form == "mxfp4" else (0, 0)
    )
    assert late == ""
