"""Whatever a worker on a Hopper GPU may launch is compiled before it is ready. No GPU is needed: kernels are compiled,
not launched, over tensors without memory. In a process of its own: here kernels are interpreted.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from baton_testing.processes.child_process import run_to_end

PROGRAM = """
import sys
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
torch.cuda.get_device_name = lambda *device: "a Hopper GPU without measurements"
torch.backends.cuda.preferred_blas_library = lambda *way: None

from baton_engine.memory.kv_pool import kv_geometry
from baton_engine.model.assembly import assemble
from baton_engine.model.layers.attention import LastRows, StepRows
from baton_engine.model.weights import TensorHeader, expected_tensors
from baton_engine.running import step_graphs
from baton_engine.running.warm_up import rehearse
from baton_kernels.attention_inputs import DecodeRows, PrefillRows
from baton_kernels.compiling import compiled_together
from baton_wire.models.parsing import parse_spec

META, SLOTS, BLOCK, CONTEXT = torch.device("meta"), 64, 64, 8_192
config = parse_spec({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 8192,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 5e5,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
})

class Blank:
    headers = {n: TensorHeader(f.shapes[0], f.dtypes[0]) for n, f in expected_tensors(config).items() if not f.optional}

    def read(self, name):
        return torch.empty(self.headers[name].shape, dtype=torch.bfloat16, device=META)

class Ready(Exception):
    pass

def is_ready(stage):
    raise Ready

torch.set_grad_enabled(False)
model = assemble(config, Blank(), torch.bfloat16, META, CONTEXT, 0)
torch.Tensor.is_cuda = property(lambda tensor: True)
torch.Tensor.pin_memory = lambda tensor: tensor
step_graphs.Recorder = lambda: None
geometry = kv_geometry(config, torch.bfloat16, BLOCK)
pool = torch.empty(8, geometry.layers, 2, 2, BLOCK, 128, dtype=torch.bfloat16, device=META)
names = []
knobs.compilation.listener = lambda src, **found: names.append(src.name)
last_tokens = torch.zeros(SLOTS + 1, dtype=torch.int64, device=META)
try:
    step_graphs.StepGraphs(
        model, types.SimpleNamespace(tensor=pool, geometry=geometry), last_tokens, CONTEXT // BLOCK,
        decodes="decodes" in sys.argv, hands_over="hands_over" in sys.argv,
        rehearse=lambda: rehearse(model, pool, config.vocab_size, CONTEXT), ended=is_ready,
    )
except Ready:
    print(len(names))
before = len(names)

def step(lengths, drawing):
    # An eager step: whole prompts of these lengths, of which so many draw.
    total, chunks = sum(lengths), len(lengths)
    ints = lambda *shape, dtype=torch.int32: torch.zeros(*shape, dtype=dtype, device=META)
    tables = ints(chunks, -(-max(lengths) // BLOCK))
    last = LastRows(ints(drawing, dtype=torch.int64), DecodeRows(tables[:drawing], ints(chunks)[:drawing]))
    rows = StepRows.of_groups(
        ints(total, dtype=torch.int64), [ints(total, dtype=torch.int64)],
        [PrefillRows(tables, ints(chunks + 1), ints(chunks))], [None], last,
    )
    model.hidden_states(ints(total, dtype=torch.int64), rows, pool)

with compiled_together():
    for length in (*range(1, 20), 64, 127, 128, 129, 300, 700, 1_000, 1_500, 2_049, 3_000, 4_097, 8_192):
        for chunks in (1, 2, 3, 4, 5, 16, 17, 33, 34, 40, 64):
            for drawing in {1, chunks}:
                step([length] * chunks, drawing)
print(*names[before:])
"""


@pytest.mark.parametrize("roles", [("decodes",), ("hands_over",), ("decodes", "hands_over")])
def test_prompts_of_any_number_and_length_compile_nothing(roles: tuple[str, ...], tmp_path: Path) -> None:
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    ended = run_to_end(["-c", PROGRAM, *roles], 800, environment)
    assert ended.code == 0, ended.stderr
    compiled, late, *_ = (*ended.stdout.splitlines(), "")
    assert int(compiled) > 20
    assert late == ""
