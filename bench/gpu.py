"""The engine on one GPU: decode steps, prefill and the attention kernels beside their targets.

`python -m bench.gpu [decode] [prefill] [tuning]` builds Llama-3.1-8B's shape with random bf16 weights on the
device, fills the pool with random KV and times real runner steps (greedy, one step ahead). Host is the time that
`launch` takes; the device's is between events; a step's is wall time over many.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Final

import torch

from baton_engine.kv_pool import KvPool, kv_geometry
from baton_engine.loading import LoadedModel, load_model
from baton_engine.plan import BlockUpdate, OpenSlot, PrefillChunk, StepPlan
from baton_engine.runner import ModelRunner
from baton_kernels.gpu.decode_attention import DecodeConfig, paged_decode_attention_triton
from baton_kernels.gpu.prefill_attention import PrefillConfig, paged_prefill_attention_triton
from baton_kv_transfer.wire.values import SamplingParams

GPU: Final = torch.device("cuda")
BLOCK_TOKENS: Final = 64
BLOCKS: Final = 5_200
MAX_SLOTS: Final = 256
GREEDY: Final = SamplingParams(max_tokens=1_000, temperature=0.0)
SAMPLED: Final = SamplingParams(max_tokens=1_000, temperature=0.8, top_p=0.95, seed=7)

LLAMA_8B: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 33024,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
}

DECODE_GOALS: Final = {(1, 1024): 4.45, (32, 1024): 5.6, (128, 1024): 9.1, (256, 1024): 15.6, (32, 4096): 8.5}
"""(batch, context): ms a step."""
PREFILL_GOALS: Final = {1024: 25.0, 4096: 98.0, 8192: 211.0, 32768: 1170.0}
"""prompt tokens: ms."""
DECODE_ATTENTION_GOALS: Final = {(1, 1024): None, (1, 8192): 14, (32, 1024): None, (32, 4096): 128, (128, 1024): 126}
"""(batch, context): µs a layer."""


class Bench:
    """One model, pool and runner. Slot s holds blocks s · n … of the pool, whose contents are random."""

    def __init__(self) -> None:
        begin = time.perf_counter()
        config = Path(tempfile.mkdtemp()) / "config.json"
        config.write_text(json.dumps(LLAMA_8B))
        self.loaded: LoadedModel = load_model(f"random://{config}", torch.bfloat16, GPU)
        geometry = kv_geometry(self.loaded.config, torch.bfloat16, BLOCK_TOKENS)
        self.pool = KvPool(geometry, BLOCKS, torch.bfloat16, GPU)
        self.pool.tensor.normal_()
        torch.cuda.synchronize()
        built = time.perf_counter()
        self.runner = ModelRunner(self.loaded, self.pool, MAX_SLOTS)
        torch.cuda.synchronize()
        print(f"build {built - begin:.1f} s, capture {time.perf_counter() - built:.1f} s", flush=True)
        self.step = 0

    def open(self, slots: int, context: int, sampling: SamplingParams) -> None:
        blocks = -(-(context + 256) // BLOCK_TOKENS)
        opens = tuple(OpenSlot(slot, sampling, 0, (1, 2), (3,), context, 7 * slot + 3) for slot in range(slots))
        updates = tuple(
            BlockUpdate(slot, index, (slot * blocks + index) % BLOCKS)
            for slot in range(slots)
            for index in range(blocks)
        )
        self.runner.execute(StepPlan(self.step, opens, updates))

    def decode(self, batch: int, context: int, sampling: SamplingParams = GREEDY, steps: int = 100) -> str:
        self.open(batch, context, sampling)
        slots = tuple(range(batch))
        device_ms, host_ms = [], []
        self.runner.launch(StepPlan(self.step, decode=slots))
        for step in range(steps + 10):
            if step == 10:
                begin = time.perf_counter()
            launched = time.perf_counter()
            self.runner.launch(StepPlan(self.step, decode=slots))
            host_ms.append((time.perf_counter() - launched) * 1e3)
            device_ms.append(self.runner.collect().duration_s * 1e3)
        step_ms = (time.perf_counter() - begin) / steps * 1e3
        self.runner.collect()
        return f"{step_ms:.3f} ms (device {median(device_ms):.3f}, host {median(host_ms):.3f})"

    def prefill(self, tokens: int) -> float:
        self.open(1, tokens, GREEDY)
        ids = tuple(int(token) for token in torch.randint(5, 100_000, (tokens,)))
        plan = StepPlan(self.step, prefill=(PrefillChunk(0, 0, ids, (0,)),))
        return median(self.runner.execute(plan).duration_s * 1e3 for _ in range(4))

    def decode_attention_us(self, batch: int, context: int, splits: int | None, config: DecodeConfig) -> float:
        """A layer's, of a graph over all layers; tables as wide as the longest context allows."""
        blocks = context // BLOCK_TOKENS
        tables = torch.zeros(batch, 516, dtype=torch.int32, device=GPU)
        tables[:, :blocks] = torch.randperm(BLOCKS, device=GPU)[: batch * blocks].view(batch, blocks).int()
        lens = torch.full((batch,), context, dtype=torch.int32, device=GPU)
        q = torch.randn(batch, 32, 128, dtype=torch.bfloat16, device=GPU)

        def layers() -> None:
            for layer in range(32):
                paged_decode_attention_triton(q, self.pool.tensor, layer, tables, lens, 0.088, None, splits, config)

        return graph_ms(layers) / 32 * 1e3

    def prefill_attention_tflops(self, tokens: int, config: PrefillConfig | None) -> float:
        blocks = -(-tokens // BLOCK_TOKENS)
        tables = torch.randperm(BLOCKS, device=GPU)[:blocks].view(1, blocks).int()
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=GPU)
        q = torch.randn(tokens, 32, 128, dtype=torch.bfloat16, device=GPU)

        def layers() -> None:
            for layer in range(8):
                paged_prefill_attention_triton(
                    q, self.pool.tensor, layer, tables, starts, starts[1:], 0.088, None, tokens, config
                )

        return 4 * tokens**2 * 32 * 128 / 2 * 8 / (graph_ms(layers) * 1e9)


def graph_ms(work: Callable[[], None], rounds: int = 7) -> float:
    """Median time of a replay of the work."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times: list[float] = []
    for _ in range(rounds):
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def tune(bench: Bench) -> None:
    shapes = [*DECODE_ATTENTION_GOALS, (256, 1024)]
    for config in (DecodeConfig(*c) for c in product((32, 64), (2, 4), (2, 3, 5))):
        for batch, context in shapes:
            wanted = {s for programs in (264, 528, 1056) if (s := min(64, max(1, programs // (8 * batch)))) > 0}
            found = {s: bench.decode_attention_us(batch, context, s, config) for s in sorted(wanted)}
            row = "  ".join(f"{s}: {us:.1f}" for s, us in found.items())
            print(f"decode {batch} x {context} {config.block_n, config.warps, config.stages}: {row}", flush=True)
    for values in ((64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 8, 4), (128, 32, 8, 3)):
        row = "  ".join(
            f"{n}: {bench.prefill_attention_tflops(n, PrefillConfig(*values)):.0f}" for n in (1024, 4096, 8192)
        )
        print(f"prefill attention {values}: {row} TFLOP/s", flush=True)


def main(parts: list[str]) -> None:
    with torch.inference_mode():
        bench = Bench()
        if "decode" in parts:
            for (batch, context), goal in DECODE_GOALS.items():
                print(f"decode {batch} x {context}: {bench.decode(batch, context)}, goal {goal}", flush=True)
            print(f"decode 128 x 1024, top-p: {bench.decode(128, 1024, SAMPLED)}", flush=True)
        if "prefill" in parts:
            for tokens, goal in PREFILL_GOALS.items():
                print(f"prefill {tokens}: {bench.prefill(tokens):.1f} ms, goal {goal}", flush=True)
        if "tuning" in parts:
            tune(bench)


if __name__ == "__main__":
    main(sys.argv[1:] or ["decode", "prefill"])
