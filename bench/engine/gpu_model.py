"""One model with its pool and runner on a GPU, and timers: what `bench gpu` measures with."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.running.runner import ModelRunner
from baton_engine.scheduling.step_plan import BlockUpdate, OpenSlot, PrefillChunk, Runner, StepPlan
from baton_wire.messages.values import SamplingParams

GPU: Final = torch.device("cuda")
BLOCK_TOKENS: Final = 64
GREEDY: Final = SamplingParams(max_tokens=1_000, temperature=0.0)
SAMPLED: Final = SamplingParams(max_tokens=1_000, temperature=0.8, top_p=0.95, seed=7)

_LLAMA: Final = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
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
_QWEN3: Final = {
    **_LLAMA,
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "eos_token_id": 151645,
}


def _shape(base: Mapping[str, Any], hidden: int, inner: int, layers: int, heads: int, **more: object) -> dict[str, Any]:
    return {
        **base,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


_GPT_OSS: Final = _shape(
    _LLAMA,
    2880,
    2880,
    24,
    64,
    architectures=["GptOssForCausalLM"],
    model_type="gpt_oss",
    head_dim=64,
    vocab_size=201088,
    num_local_experts=32,
    num_experts_per_tok=4,
    sliding_window=128,
    eos_token_id=200002,
)

SHAPES: Final[Mapping[str, dict[str, Any]]] = {
    "Llama-3.1-8B": _shape(_LLAMA, 4096, 14336, 32, 32),
    "Llama-3.2-1B": _shape(_LLAMA, 2048, 8192, 16, 32, head_dim=64, tie_word_embeddings=True),
    "Llama-3.3-70B": _shape(_LLAMA, 8192, 28672, 80, 64),
    "Llama-3.2-3B": _shape(_LLAMA, 3072, 8192, 28, 24, tie_word_embeddings=True),
    "Qwen3-0.6B": _shape(_QWEN3, 1024, 3072, 28, 16, tie_word_embeddings=True),
    "Qwen3-30B-A3B": _shape(
        _QWEN3,
        2048,
        6144,
        48,
        32,
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        num_key_value_heads=4,
        num_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=768,
        norm_topk_prob=True,
    ),
    "gpt-oss-20b": _GPT_OSS,
    "gpt-oss-20b without windows": {**_GPT_OSS, "layer_types": ["full_attention"] * 24},
    "gpt-oss-120b": {
        **_GPT_OSS,
        "num_hidden_layers": 36,
        "num_local_experts": 128,
        "max_position_embeddings": 131072,
    },
    "Qwen3-14B": _shape(_QWEN3, 5120, 17408, 40, 40),
    "Qwen3-32B": _shape(_QWEN3, 5120, 25600, 64, 64),
}


_TOKENS: Final = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def _compressed_config(layout: str, inputs: dict[str, Any] | None = None, **weights: object) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, **weights}, "input_activations": inputs}
    section = {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}}
    return {"quantization_config": {**section, "ignore": ["lm_head"]}}


WEIGHTS: Final[Mapping[str, dict[str, Any]]] = {
    "bf16": {},
    "fp8": _compressed_config("float-quantized", num_bits=8, type="float", strategy="channel"),
    "fp8-block": {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
    "int8": _compressed_config("int-quantized", _TOKENS, num_bits=8, type="int", strategy="channel"),
    "int8-weights": _compressed_config("int-quantized", num_bits=8, type="int", strategy="channel"),
    "int4": _compressed_config("pack-quantized", num_bits=4, type="int", strategy="group", group_size=128),
    "mxfp4": {"quantization_config": {"quant_method": "mxfp4"}},
}
"""Fields of config.json by form of weights; the head stays in 16 bits."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    step_ms: float
    """Wall time of a step, one ahead, over many."""
    device_ms: float
    """Median between a step's events."""
    host_ms: float
    """Median that `launch` takes."""


class StepBench:
    """Timers of the steps of a runner. Slot s holds blocks s · n … of its pool, whose contents are random."""

    def __init__(
        self, runner: Runner, blocks: int, groups: int, block_tokens: int = BLOCK_TOKENS, vocabulary: int = 100_000
    ) -> None:
        """`groups`: of layers that share block tables. `vocabulary`: prompts' ids are below it."""
        self.runner = runner
        self.blocks, self.groups, self.block_tokens, self.vocabulary = blocks, groups, block_tokens, vocabulary

    def open(self, slots: int, context: int, sampling: SamplingParams) -> None:
        blocks = -(-(context + 256) // self.block_tokens)
        opens = tuple(OpenSlot(slot, sampling, 0, (1, 2), (3,), context, 7 * slot + 3) for slot in range(slots))
        self.runner.execute(StepPlan(0, opens, self.tables(slots, blocks)))

    def tables(self, slots: int, blocks: int) -> tuple[BlockUpdate, ...]:
        """`blocks` blocks of each KV group for each slot, in turn; a pool that is too small gives them out again."""
        return tuple(
            BlockUpdate(slot, index, ((slot * blocks + index) * self.groups + kv_group) % self.blocks, kv_group)
            for slot in range(slots)
            for index in range(blocks)
            for kv_group in range(self.groups)
        )

    def decode(self, batch: int, context: int, sampling: SamplingParams = GREEDY, steps: int = 100) -> StepTimes:
        self.open(batch, context, sampling)
        slots = tuple(range(batch))
        return self._time_steps(StepPlan(0, decode=slots), steps)

    def _time_steps(self, plan: StepPlan, steps: int) -> StepTimes:
        """The same step again and again, one ahead. Ranks report steps by their numbers, so each has its own."""
        device_ms, host_ms = [], []
        plans = [replace(plan, step=number) for number in range(steps + 11)]
        self.runner.launch(plans.pop())
        for step in range(steps + 10):
            if step == 10:
                begin = time.perf_counter()
            launched = time.perf_counter()
            self.runner.launch(plans.pop())
            host_ms.append((time.perf_counter() - launched) * 1e3)
            device_ms.append(self.runner.collect().duration_s * 1e3)
        step_ms = (time.perf_counter() - begin) / steps * 1e3
        self.runner.collect()
        return StepTimes(step_ms, median(device_ms), median(host_ms))

    def prefill(self, tokens: int) -> float:
        """Median ms of a whole prompt's step, its first token drawn."""
        self.open(1, tokens, GREEDY)
        ids = tuple(int(token) for token in torch.randint(5, self.vocabulary, (tokens,)))
        plan = StepPlan(0, prefill=(PrefillChunk(0, 0, ids, (0,)),))
        return median(self.runner.execute(plan).duration_s * 1e3 for _ in range(5))

    def mixed(self, rows: int, piece: int, context: int, steps: int = 30) -> StepTimes:
        """Steps of decode rows and a piece of a prompt, one ahead; the piece ends its prompt and draws."""
        self.open(rows + 1, context, GREEDY)
        ids = tuple(int(token) for token in torch.randint(5, self.vocabulary, (piece,)))
        slots = tuple(range(rows))
        plan = StepPlan(0, prefill=(PrefillChunk(rows, 0, ids, (rows,)),), decode=slots)
        return self._time_steps(plan, steps)


class Bench(StepBench):
    """One model on one GPU, in this process."""

    def __init__(  # noqa: PLR0913 - a bench of one model: each part names the few it changes
        self,
        shape: str,
        blocks: int,
        max_slots: int = 256,
        kv_dtype: torch.dtype = torch.bfloat16,
        weights: str = "bf16",
        masks: RowMasks | None = None,
        *,
        decodes: bool = True,
        offloaded: int = 0,
    ) -> None:
        begin = time.perf_counter()
        config = Path(tempfile.mkdtemp()) / "config.json"
        config.write_text(json.dumps({**SHAPES[shape], **WEIGHTS[weights]}))
        self.loaded: LoadedModel = load_model(f"random://{config}", torch.bfloat16, GPU, offloaded=offloaded)
        self.weight_bytes = torch.cuda.memory_allocated()
        geometry = kv_geometry(self.loaded.config, kv_dtype, BLOCK_TOKENS)
        self.pool = KvPool(geometry, blocks, kv_dtype, GPU)
        for block in self.pool.tensor:
            block.copy_(torch.randn(block.shape, dtype=torch.bfloat16, device=GPU))
        torch.cuda.synchronize()
        built = time.perf_counter()
        free, _ = torch.cuda.mem_get_info()
        runner = ModelRunner(self.loaded, self.pool, max_slots, masks, decodes=decodes)
        super().__init__(runner, blocks, len(geometry.windows))
        torch.cuda.synchronize()
        self.capture_s = time.perf_counter() - built
        taken = (free - torch.cuda.mem_get_info()[0]) / 2**30
        print(
            f"{shape}, {weights}: build {built - begin:.1f} s, capture {self.capture_s:.1f} s, {taken:.2f} GiB",
            flush=True,
        )

    def gaps_us(self, batch: int, context: int, steps: int = 40) -> list[float]:
        """From CUPTI's timeline: the device's idle time between the last operation of a step and the first of the
        next."""
        from torch.profiler import ProfilerActivity, profile

        self.open(batch, context, GREEDY)
        plan = StepPlan(0, decode=tuple(range(batch)))
        self.runner.launch(plan)
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            for _ in range(steps):
                self.runner.launch(plan)
                self.runner.collect()
        self.runner.collect()
        events = sorted(
            (event.time_range.start, event.time_range.end, event.name)
            for event in trace.events() or ()
            if event.device_type.name == "CUDA"
        )
        gaps: list[float] = []
        busy_until = float("-inf")
        for begin, end, name in events:
            # A step begins with the copy of its row numbers.
            if "HtoD" in name and busy_until > 0:
                gaps.append(max(0.0, begin - busy_until))
            busy_until = max(busy_until, end)
        return gaps[2:]


def graph_us(work: Callable[[], object], calls: int, rounds: int = 7) -> float:
    """Median time of a replay of the work, which makes `calls` calls, per call."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    # Clocks rise under load only: some 50 ms of it before anything is timed.
    warm_until = time.perf_counter() + 0.05
    while time.perf_counter() < warm_until:
        graph.replay()
        torch.cuda.synchronize()
    times: list[float] = []
    for _ in range(rounds):
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return median(times) / calls


def gpu_facts() -> list[str]:
    """GPU, driver, versions and commit, as notes of a result."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip().splitlines()[0]
    import triton

    commit = os.environ.get("BATON_COMMIT") or "unknown"
    return [
        f"{gpu}; CUDA {torch.version.cuda}, torch {torch.__version__}, Triton {triton.__version__}; commit {commit}",
        "random bf16 weights and KV, blocks of 64 tokens, greedy unless said otherwise; medians",
    ]
