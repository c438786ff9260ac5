"""Whatever a worker on a Hopper GPU may launch is compiled before it is ready, and ahead of its start where somebody
did that. No GPU is needed: kernels are compiled, not launched. In processes of their own: here kernels are interpreted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from baton_kernels.ahead.kernel_folder import ABOUT
from baton_testing.processes.prepared import Prepared

SLOTS, CONTEXT = 64, 8_192
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048,
    "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 8192,
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 5e5,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip

PROGRAM = """
import sys
import types
from pathlib import Path
import torch
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.assembly import assemble
from baton_engine.model.blank_weights import blank_model
from baton_engine.model.layers.attention import LastRows, StepRows
from baton_engine.model.model_directory import read_spec
from baton_engine.model.weights import RandomWeights
from baton_engine.running import step_graphs
from baton_engine.running.warm_up import rehearse
from baton_kernels.attention.attention_inputs import DecodeRows, PrefillRows
from baton_kernels.ahead.compiling import compiled_together
from baton_kernels.ahead.described_gpu import GPUS, META, compiling_for
from baton_kernels.ahead.kernel_folder import CompiledHere, use_folder
from baton_kernels.sampling.penalties import apply_penalties
from baton_kernels.sampling.sampling_inputs import Penalties

folder, model_folder, memory, *roles = sys.argv[1:]
device = torch.device(memory)
SLOTS, CONTEXT, BLOCK = 64, 8_192, 64
directory = Path(model_folder)
config = read_spec(directory)
use_folder(Path(folder))
here = CompiledHere()
here.watch()

class Ready(Exception):
    pass

def is_ready(stage):
    raise Ready

torch.set_grad_enabled(False)
if memory == "cpu":  # as of a GPU, in memory that has addresses; nothing that is computed counts
    torch._C._nn.linear = lambda x, weight, bias=None: x.new_empty(*x.shape[:-1], len(weight))
    torch.nn.functional.linear = torch._C._nn.linear
    import baton_engine.model.assembly as assembly
    from baton_engine.model.layers.linear import RowMethod
    assembly.linear_method = lambda dtype, device: RowMethod()
    model = assemble(config, RandomWeights(config, 0), torch.bfloat16, device, CONTEXT)
else:
    model = blank_model(directory, config, torch.bfloat16, META, CONTEXT)
pool = KvPool(kv_geometry(config, torch.bfloat16, BLOCK), 9, torch.bfloat16, device)
last_tokens = torch.zeros(SLOTS + 1, dtype=torch.int64, device=device)
step_graphs.Recorder = lambda: None

def rehearse_rest():
    rehearse(model, pool.tensor, config.vocab_size, CONTEXT)
    pool.rehearse()

def step(lengths, drawing):
    # An eager step: whole prompts of these lengths, of which this many draw.
    total, chunks = sum(lengths), len(lengths)
    ints = lambda *shape, dtype=torch.int32: torch.zeros(*shape, dtype=dtype, device=META)
    tables = ints(chunks, -(-max(lengths) // BLOCK))
    last = LastRows(ints(drawing, dtype=torch.int64), DecodeRows(tables[:drawing], ints(chunks)[:drawing]))
    rows = StepRows.of_groups(
        ints(total, dtype=torch.int64), [ints(total, dtype=torch.int64)],
        [PrefillRows(tables, ints(chunks + 1), ints(chunks))], [None], last,
    )
    model.hidden_states(ints(total, dtype=torch.int64), rows, pool.tensor)

with compiling_for(GPUS["h200"]):
    try:
        step_graphs.StepGraphs(
            model, pool, last_tokens, CONTEXT // BLOCK, decodes="decodes" in roles, hands_over="hands_over" in roles,
            rehearse=rehearse_rest, ended=is_ready,
        )
    except Ready:
        print(here.found, *here.names)
    before = len(here.names)
    with compiled_together():
        for length in (*range(1, 20), 64, 127, 128, 129, 300, 700, 1_000, 1_500, 2_049, 3_000, 4_097, 8_192):
            for chunks in (1, 2, 3, 4, 5, 16, 17, 33, 34, 40, 64) if memory == "meta" else ():
                for drawing in {1, chunks}:
                    step([length] * chunks, drawing)
        for rows in (1, 3, SLOTS) if memory == "meta" else ():
            shape = rows, config.vocab_size
            zeros = [torch.zeros(shape, dtype=dtype, device=META) for dtype in (torch.float32, torch.bool, torch.int32)]
            apply_penalties(*zeros, Penalties(*(torch.ones(rows, device=META) for _ in range(3))))
print(*here.names[before:])
"""


@pytest.fixture(scope="module")
def compiled_ahead(compiler: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, and its kernels in another place than they were compiled to."""
    place = tmp_path_factory.mktemp("ahead")
    (place / "config.json").write_text(json.dumps(CONFIG))
    sizes = [f"--max-sequences={SLOTS}", f"--max-context-tokens={CONTEXT}"]
    arguments = [str(place), "--gpu=h200", f"--to={place / 'draft'}", *sizes]
    ended = compiler.run_to_end(["-m", "baton_worker.compile_ahead", *arguments], 800, {"TRITON_INTERPRET": "0"})
    assert ended.code == 0, ended.stderr
    assert int(ended.stdout.split(": ")[1].split()[0]) > 20
    (place / "draft").rename(place / "kernels")
    return place


def run(compiler: Prepared, arguments: list[str], own_cache: Path) -> list[str]:
    """Lines of its output."""
    environment = {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(own_cache)}
    ended = compiler.run_to_end(["-c", PROGRAM, *arguments], 800, environment)
    assert ended.code == 0, ended.stderr
    return [*ended.stdout.splitlines(), ""]


@pytest.mark.parametrize("roles", [("decodes",), ("hands_over",), ("decodes", "hands_over")])
def test_a_start_compiles_nothing_that_was_compiled_ahead_and_prompts_of_any_length_nothing_at_all(
    roles: tuple[str, ...], compiled_ahead: Path, compiler: Prepared, tmp_path: Path
) -> None:
    arguments = [str(compiled_ahead / "kernels"), str(compiled_ahead), "meta", *roles]
    start, late, *_ = run(compiler, arguments, tmp_path)
    count, *compiled = start.split()
    assert int(count) > 20
    assert compiled == []
    assert late == ""
    assert not any(tmp_path.iterdir()), "nothing is written where nothing is compiled"


def test_tensors_with_addresses_need_the_same_kernels(compiled_ahead: Path, compiler: Prepared, tmp_path: Path) -> None:
    """Kernels differ by whether an address is a multiple of 16: the ones without memory must be taken for that, too."""
    arguments = [str(compiled_ahead / "kernels"), str(compiled_ahead), "cpu", "decodes", "hands_over"]
    count, *compiled = run(compiler, arguments, tmp_path)[0].split()
    assert int(count) > 20
    assert compiled == []


def test_what_is_of_other_sources_is_compiled_again(compiled_ahead: Path, compiler: Prepared, tmp_path: Path) -> None:
    """A kernel whose folder is gone stands for one that is not there under its key."""
    copy = tmp_path / "kernels"
    shutil.copytree(compiled_ahead / "kernels", copy)
    gone = next(path for path in copy.iterdir() if path.name != ABOUT and list(path.glob("_rms_norm_kernel*")))
    shutil.rmtree(gone)
    _, *compiled = run(compiler, [str(copy), str(compiled_ahead), "meta", "decodes"], tmp_path / "own")[0].split()
    assert compiled == ["_rms_norm_kernel"]
