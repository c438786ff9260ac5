"""One worker's engine on a CPU, by the format of its weights: prefill and decode tokens per second, and memory.

A random model larger than the caches: the layers of Qwen3-0.6B with 32,000 ids. One core, one torch thread, formats in
turn in each round. Its head and embedding stay in float32, as checkpoints have them in 16 bits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from bench.engine.speed import BatonEngine, Timing
from bench.machine import this_machine
from bench.results import Cell, publish, spread

PROMPT, OUTPUT = 64, 24
BATCHES: Final = (1, 8)
ROUNDS: Final = 3
MODEL: Final[dict[str, Any]] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
}


def _compressed_config(layout: str, **weights: object) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"dynamic": False, **weights}}
    return {"quant_method": "compressed-tensors", "format": layout, "config_groups": {"group_0": group}}


FORMATS: Final[Mapping[str, dict[str, Any] | None]] = {
    "float32": None,
    "int8": _compressed_config("pack-quantized", num_bits=8, type="int", strategy="channel"),
    "fp8": _compressed_config("float-quantized", num_bits=8, type="float", strategy="channel"),
    "int4 g128": _compressed_config("pack-quantized", num_bits=4, type="int", strategy="group", group_size=128),
}
"""Name to quantization_config."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    machine = this_machine()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    rows: list[dict[str, Cell]] = []
    for batch in BATCHES:
        rows += compare_formats(batch, options.rounds)
    notes = [f"{PROMPT} prompt and {OUTPUT} output tokens, greedy, one core; ratios of neighbouring runs"]
    publish("engine_quantised", machine, notes, list(rows[0]), rows)


def compare_formats(batch: int, rounds: int) -> list[dict[str, Cell]]:
    """A row for each format; the first round warms up."""
    dice = random.Random(batch)
    engines: dict[str, BatonEngine] = {}
    taken: dict[str, float] = {}
    for name, section in FORMATS.items():
        before = _resident_gb()
        engines[name] = _engine(section, batch)
        taken[name] = _resident_gb() - before
    timings: dict[str, list[Timing]] = {name: [] for name in FORMATS}
    for number in range(rounds + 1):
        prompts = [tuple(dice.randrange(5, 30_000) for _ in range(PROMPT)) for _ in range(batch)]
        for name, engine in engines.items():
            timing = engine.generate(prompts, OUTPUT)
            if number:
                timings[name].append(timing)
    pairs = {name: list(zip(timings["float32"], runs, strict=True)) for name, runs in timings.items()}
    return [
        {
            "weights": name,
            "batch": batch,
            "prefill tokens/s": str(spread([batch * PROMPT / t.prefill_s for t in runs])),
            "decode tokens/s": str(spread([batch * (OUTPUT - 1) / t.decode_s for t in runs])),
            "prefill, times float32": _times([(one.prefill_s, other.prefill_s) for one, other in pairs[name]]),
            "decode, times float32": _times([(one.decode_s, other.decode_s) for one, other in pairs[name]]),
            "GB more resident": round(taken[name], 2),
        }
        for name, runs in timings.items()
    ]


def _times(pairs: Sequence[tuple[float, float]]) -> str:
    return str(spread([plain / seconds for plain, seconds in pairs]))


def _engine(section: dict[str, Any] | None, batch: int) -> BatonEngine:
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(MODEL if section is None else {**MODEL, "quantization_config": section}))
        return BatonEngine(f"random://{config}", batch, PROMPT + OUTPUT)


def _resident_gb() -> float:
    """Resident memory of this process, from /proc."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e9


if __name__ == "__main__":
    main()
