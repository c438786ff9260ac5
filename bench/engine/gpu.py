"""The engine on one GPU against its goals: decode steps, prefill, other models' shapes, the timeline, the kernels.

`python -m bench gpu [PART …]` (decode, prefill, mixed, timeline, kernels, weights, experts, expert_layers, windows,
models, offloading, loading; all without arguments; most take a minute or two) builds models of random bf16 weights on
the device, fills pools with random KV and times real runner steps, one step ahead. The table goes to
`bench/results/gpu.json`; BATON_COMMIT names the commit where git is not at hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import median
from typing import Final

import torch
from bench.engine.gpu_model import SAMPLED, SHAPES, Bench, gpu_facts, graph_us
from bench.engine.weight_loading import loading
from bench.kernels import gpu as gpu_kernels
from bench.kernels.expert_layers import expert_layers
from bench.kernels.gpu import Row, row
from bench.kernels.mxfp4_experts import mxfp4_experts_of_gpt_oss
from bench.machine import this_machine
from bench.results import publish

from baton_kernels.kv.kv_scales import KV_FP8

LLAMA_8B: Final = SHAPES["Llama-3.1-8B"]

DECODE: Final = {
    (1, 1024): (4.45, 4.81),
    (32, 1024): (5.6, 6.18),
    (128, 1024): (9.1, 10.42),
    (256, 1024): (15.6, 17.57),
    (32, 4096): (8.5, 8.87),
}
"""(batch, context): ms a step, the goal and vLLM 0.26's."""
PREFILL: Final[Mapping[int, tuple[float | None, float | None]]] = {
    **{64: (5.0, None), 128: (5.5, None), 256: (7.5, None), 512: (12.5, None), 768: (None, None)},
    **{1024: (25.0, 27.1), 4096: (98.0, 100.4), 8192: (211.0, 216.7), 32768: (1170.0, 1197.4)},
}
"""Prompt tokens: ms, the goal and vLLM 0.26's."""
MIXED: Final[Mapping[tuple[int, int], float | None]] = {
    **{(16, 64): None, (64, 64): 7.8, (64, 256): 11.5, (64, 512): 17.0, (64, 1024): None},
    **{(128, 64): None, (128, 256): 13.5, (128, 512): None},
}
"""(decode rows at 1.2k context, tokens of a piece of a prompt): ms a step, the goal."""
OTHERS: Final[Mapping[str, Mapping[int, float | None]]] = {
    "Qwen3-0.6B": {1: 1.25, 64: 3.0},
    "Llama-3.2-1B": {1: None, 64: None},
    "Llama-3.2-3B": {1: None, 64: None},
    "Qwen3-14B": {1: None, 64: None},
    "Qwen3-32B": {1: None, 32: None},
}
"""Batch at 1k context: ms a step."""
LARGE: Final[Mapping[tuple[str, str], Mapping[int, float | None]]] = {
    ("Llama-3.3-70B", "fp8"): {4_096: None},
    ("gpt-oss-120b", "mxfp4"): {2_048: 70.6, 8_192: 205.0, 16_384: 426.0, 32_768: 983.0, 49_152: 1_695.0},
}
"""Model and form of its weights: prompt tokens, and the ms that are published for vLLM with TP 1 on one H200."""
BLOCKS: Final = 5_200
GAP_GOAL_US: Final = 30.0


def decode(bench: Bench) -> Iterator[Row]:
    for (batch, context), (goal, vllm) in DECODE.items():
        times = bench.decode(batch, context)
        host = f"device {times.device_ms:.3f}, host {times.host_ms:.3f}; vLLM {vllm}"
        yield row("decode step", f"{batch} x {context}", times.step_ms, "ms", goal, host)
    times = bench.decode(128, 1024, SAMPLED)
    yield row("decode step, all rows top-p", "128 x 1024", times.step_ms, "ms", None, f"host {times.host_ms:.3f}")


def prefill(bench: Bench) -> Iterator[Row]:
    for tokens, (goal, vllm) in PREFILL.items():
        yield row("prefill", str(tokens), bench.prefill(tokens), "ms", goal, f"vLLM {vllm}")


def mixed(bench: Bench) -> Iterator[Row]:
    for (rows, piece), goal in MIXED.items():
        times = bench.mixed(rows, piece, 1_200)
        host = f"device {times.device_ms:.3f}, host {times.host_ms:.3f}"
        yield row("step with a piece of a prompt", f"{rows} + {piece}", times.step_ms, "ms", goal, host)


def timeline(bench: Bench) -> Iterator[Row]:
    for batch in (1, 32, 128, 256):
        gaps = bench.gaps_us(batch, 1024)
        yield row("gap between steps, p50", f"{batch} x 1024", median(gaps), "µs", GAP_GOAL_US, f"max {max(gaps):.0f}")


def float8(blocks: int) -> Iterator[Row]:
    bench = Bench("Llama-3.1-8B", blocks, kv_dtype=KV_FP8)
    for batch, context in ((32, 4096), (128, 1024), (256, 1024)):
        times = bench.decode(batch, context)
        yield row(
            "decode step, fp8 KV", f"{batch} x {context}", times.step_ms, "ms", None, f"device {times.device_ms:.3f}"
        )


NO_GOALS: Final = (None, None, None, None)
QUANTISED: Final[Mapping[tuple[str, torch.dtype], tuple[float | None, ...]]] = {
    ("bf16", torch.bfloat16): NO_GOALS,
    ("fp8", torch.bfloat16): (2.6, 3.8, 7.4, 13.0),
    ("fp8", KV_FP8): (2.6, 3.3, 5.6, 9.3),
    ("fp8-block", torch.bfloat16): (2.6, 3.8, 7.4, 13.0),
    ("int8", torch.bfloat16): NO_GOALS,
    ("int4", torch.bfloat16): (1.9, 3.2, 8.5, 15.7),
}
"""Weights and KV: goals of ms a decode step at 1k context and BATCHES."""
BATCHES: Final = (1, 32, 128, 256)
QUANTISED_PREFILL: Final = {4096: 60.0, 8192: 135.0, 32768: 900.0}
"""Prompt tokens: ms, the goal with weights of e4m3."""


def quantised() -> Iterator[Row]:
    for (weights, kv_dtype), goals in QUANTISED.items():
        bench = Bench("Llama-3.1-8B", BLOCKS, kv_dtype=kv_dtype, weights=weights)
        kv = "fp8 KV" if kv_dtype == KV_FP8 else "bf16 KV"
        for batch, goal in zip(BATCHES, goals, strict=True):
            times = bench.decode(batch, 1024)
            what = f"decode step, {weights} weights, {kv}"
            yield row(what, f"{batch} x 1024", times.step_ms, "ms", goal, f"device {times.device_ms:.3f}")
        if kv_dtype != KV_FP8:
            for tokens, aim in QUANTISED_PREFILL.items():
                asked = aim if weights.startswith("fp8") else None
                yield row(f"prefill, {weights} weights", str(tokens), bench.prefill(tokens), "ms", asked)
        del bench
        torch.cuda.empty_cache()


EXPERT_GOALS: Final = {1: 2.2, 32: 15.0, 128: 17.0}
"""Rows at 1k context: ms a decode step of Qwen3-30B-A3B's shape in bf16."""
EXPERT_LAYER_US: Final[Mapping[int, tuple[float | None, float | None]]] = {
    1: (26.0, 40.0),
    8: (None, 172.0),
    16: (None, None),
    32: (None, 305.0),
    128: (1.15 * 284.0, 316.0),
    4096: (None, 691.0),
}
"""Tokens: the goal of one layer's experts and vLLM 0.24's."""


GPT_OSS_LAYER_US: Final[Mapping[int, tuple[float | None, float | None]]] = {
    1: (25.0, 60.0),
    **dict.fromkeys((2, 4, 8, 32, 64), (None, None)),
    128: (1.15 * 99.3, None),
    **dict.fromkeys((512, 1024, 4096), (None, None)),
}
"""The same of gpt-oss-20b in MXFP4; the goal at 128 tokens is 1.15 times what the bytes of all experts need."""


def experts() -> Iterator[Row]:
    for weights in ("bf16", "fp8-block", "int4"):
        bench = Bench("Qwen3-30B-A3B", 1_400, 128, weights=weights)
        has_goals, name = weights == "bf16", f"Qwen3-30B-A3B {weights}"
        yield row(f"weights {name}", "", bench.weight_bytes / 1e9, "GB", None)
        for batch, goal in EXPERT_GOALS.items():
            step_ms = bench.decode(batch, 1024).step_ms
            yield row(f"decode step {name}", f"{batch} x 1024", step_ms, "ms", goal if has_goals else None)
        yield row(f"prefill {name}", "4096", bench.prefill(4096), "ms", None)
        no_goals = dict.fromkeys(EXPERT_LAYER_US, (None, None))
        yield from _expert_layers(bench, name, EXPERT_LAYER_US if has_goals else no_goals)
        del bench
        torch.cuda.empty_cache()
    for weights in ("mxfp4", "bf16"):
        bench = Bench("gpt-oss-20b", 4_000, 128, weights=weights)
        name = f"gpt-oss-20b {weights}"
        yield row(f"weights {name}", "", bench.weight_bytes / 1e9, "GB", None)
        for batch in (1, 32, 128):
            yield row(f"decode step {name}", f"{batch} x 1024", bench.decode(batch, 1024).step_ms, "ms", None)
        yield row(f"prefill {name}", "4096", bench.prefill(4096), "ms", None)
        yield from _expert_layers(bench, name, GPT_OSS_LAYER_US if weights == "mxfp4" else {})
        del bench
        torch.cuda.empty_cache()
    yield from mxfp4_experts_of_gpt_oss()


def windows() -> Iterator[Row]:
    """Half of gpt-oss-20b's layers look back 128 tokens; compared with the same model with full attention."""
    for name in ("gpt-oss-20b", "gpt-oss-20b without windows"):
        bench = Bench(name, 20_000, 32, weights="mxfp4")
        for context in (1_024, 8_192, 32_000):
            yield row(f"decode step {name}", f"32 x {context}", bench.decode(32, context).step_ms, "ms", None)
            yield row(f"prefill {name}", str(context), bench.prefill(context), "ms", None)
        del bench
        torch.cuda.empty_cache()


def _expert_layers(bench: Bench, name: str, goals: Mapping[int, tuple[float | None, float | None]]) -> Iterator[Row]:
    blocks = [layer.mlp for layer in bench.loaded.model.layers[:16]]
    hidden = bench.loaded.config.hidden_size
    for tokens, (aim, vllm) in goals.items():
        x = torch.randn(tokens, hidden, dtype=torch.bfloat16, device="cuda")

        def work(x: torch.Tensor = x) -> None:
            for block in blocks:
                block(x)

        us = graph_us(work, len(blocks))
        yield row(f"expert layer {name}", f"{tokens} tokens", us, "µs", aim, f"vLLM {vllm}" if vllm else "")


def models() -> Iterator[Row]:
    for name, goals in OTHERS.items():
        bench = Bench(name, 1_400, max(goals))
        for batch, goal in goals.items():
            weights = sum(tensor.numel() * 2 for tensor in _weights(bench))
            times = bench.decode(batch, 1024)
            rate = (weights + batch * 1024 * bench.pool.geometry.token_bytes) / times.step_ms / 1e9
            yield row(f"decode step {name}", f"{batch} x 1024", times.step_ms, "ms", goal, f"{rate:.2f} TB/s")
        yield row(f"prefill {name}", "4096", bench.prefill(4096), "ms", None)
        del bench
        torch.cuda.empty_cache()
    for (name, form), prompts in LARGE.items():
        bench = Bench(name, 1_700, 32, weights=form)
        for batch in (1, 32):
            yield row(f"decode step {name} {form}", f"{batch} x 1024", bench.decode(batch, 1024).step_ms, "ms", None)
        for tokens, vllm in prompts.items():
            published = f"vLLM {vllm}" if vllm else ""
            yield row(f"prefill {name} {form}", str(tokens), bench.prefill(tokens), "ms", None, published)
        del bench
        torch.cuda.empty_cache()


def _weights(bench: Bench) -> Iterator[torch.Tensor]:
    """Weights that a step reads: every matrix but the embedding."""
    model = bench.loaded.model
    for linear in (model.head, *(part for layer in model.layers for part in (layer.qkv, layer.output))):
        yield linear.weight  # type: ignore[attr-defined]
    for layer in model.layers:
        yield layer.mlp.gate_up.weight  # type: ignore[attr-defined]
        yield layer.mlp.down.weight  # type: ignore[attr-defined]


def _host_gb_per_s(size: int) -> float:
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(size, dtype=torch.uint8, device="cuda")
    return size / graph_us(lambda: device.copy_(host, non_blocking=True), 1) / 1e3


OFFLOADED: Final = (0, 8, 16, 31)
OFFLOADED_PROMPTS: Final = (512, 2_048, 4_096, 8_192, 16_384, 32_768)


def offloading() -> Iterator[Row]:
    """Llama-3.1-8B's shape with more and more of its 32 layers in the host's memory."""
    yield row("copy from pinned memory", "512 MiB", _host_gb_per_s(1 << 29), "GB/s", None)
    for offloaded in OFFLOADED:
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        bench = Bench("Llama-3.1-8B", 700, 8, decodes=False, offloaded=offloaded)
        held = (bench.weight_bytes - before) / 2**30
        yield row(f"weights on the device, {offloaded} layers offloaded", "bf16", held, "GiB", None)
        for tokens in OFFLOADED_PROMPTS:
            yield row(f"prefill, {offloaded} layers offloaded", str(tokens), bench.prefill(tokens), "ms", None)
        del bench


PARTS: Final = (
    "decode",
    "prefill",
    "mixed",
    "timeline",
    "kernels",
    "weights",
    "experts",
    "expert_layers",
    "windows",
    "models",
    "offloading",
    "loading",
)


WHOLE_PARTS: Final[dict[str, Callable[[], Iterable[Row]]]] = {
    "weights": quantised,
    "experts": experts,
    "expert_layers": expert_layers,
    "windows": windows,
    "models": models,
    "offloading": offloading,
    "loading": loading,
}
"""The parts that load what they measure themselves."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=PARTS, metavar="|".join(PARTS))
    parts = parser.parse_args().parts
    rows: list[Row] = []
    with torch.inference_mode():
        of_one_model = {"decode": decode, "prefill": prefill, "mixed": mixed, "timeline": timeline}
        if of_one_model.keys() & set(parts):
            bench = Bench("Llama-3.1-8B", BLOCKS)
            for name, part in of_one_model.items():
                if name in parts:
                    rows += part(bench)
            del bench
            torch.cuda.empty_cache()
        if "decode" in parts:
            rows += float8(BLOCKS)
            torch.cuda.empty_cache()
        if "kernels" in parts:
            for kv_dtype in (torch.bfloat16, KV_FP8):
                rows += gpu_kernels.decode_attention(kv_dtype)
            for kernels in (
                gpu_kernels.prefill_attention,
                gpu_kernels.products,
                gpu_kernels.quantised_products,
                gpu_kernels.draws,
                gpu_kernels.kv_stream,
            ):
                rows += kernels()
        for name, whole_part in WHOLE_PARTS.items():
            if name in parts:
                rows += whole_part()
    publish("gpu", this_machine(), gpu_facts(), ["what", "size", "measured", "unit", "goal", "beside"], rows)


if __name__ == "__main__":
    main()
