"""Tokens/s of encoded prompts and of prompts that are answered with one token, on one random model.

    python -m bench engine_encoding --device cuda --model qwen3-0.6b      one GPU, at most a minute after its start

Each round submits the same prompts to a scheduler and runner: once as a prefill worker gets them, once as embeddings.
A row is printed after each round, and the medians of a length after its last round. Stages of the start, in which a GPU
compiles kernels, and the first use of a length are lines of their own. No round begins after `--seconds`; lengths that
were not reached are named.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from bench.engine.gpu_model import SHAPES

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, Failed, PromptEncoded, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_wire.messages.encoding import Encoding, EncodingKind
from baton_wire.messages.values import RequestKey, SamplingParams

_QWEN3 = SHAPES["Qwen3-0.6B"]
_TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
_OF_4B = {"hidden_size": 2_560, "intermediate_size": 9_728, "num_hidden_layers": 36, "num_attention_heads": 32}
CONFIGS = {
    "tiny": {**_QWEN3, **_TINY, "num_key_value_heads": 4, "vocab_size": 1_024, "eos_token_id": 1},
    "qwen3-0.6b": _QWEN3,
    "qwen3-4b": {**_QWEN3, **_OF_4B},
}
LENGTHS = (512, 128, 2_048, 32, 8_000)
"""The most common lengths of texts first."""
CONTEXT = 8_192


class Engine:
    """A scheduler and a runner that take whole sets of prompts."""

    def __init__(self, loaded: LoadedModel, slots: int, tokens: int, ended: Callable[[str], None]) -> None:
        """The pool has room for `tokens` in as many prompts as slots. `ended`: as `ModelRunner` calls it."""
        block_tokens = 64 if loaded.device.type == "cuda" else 16
        geometry = kv_geometry(loaded.config, loaded.dtype, block_tokens)
        blocks = slots + -(-max(tokens, 2 * CONTEXT) // block_tokens)
        pool = KvPool(geometry, blocks, loaded.dtype, loaded.device)
        config = EngineConfig(blocks, block_tokens, slots, CONTEXT, prefix_cache=False, max_waiting=1 << 16)
        self.scheduler = Scheduler(config)
        self._stepper = Stepper(self.scheduler, ModelRunner(loaded, pool, slots, decodes=False, ended=ended))
        self._numbers = 0

    def seconds(self, prompts: list[tuple[int, ...]], encoding: Encoding | None) -> float:
        """The time until every prompt has its vector, or its first token."""
        began_s = time.perf_counter()
        for prompt in prompts:
            self._numbers += 1
            key = RequestKey(self._numbers.to_bytes(16), 1)
            sampling = SamplingParams(max_tokens=1, temperature=0.0)
            spec = SequenceSpec(key, prompt, len(prompt), (0,), sampling, "", 1e12, encoding=encoding)
            self.scheduler.submit(spec, 0.0)
        ended = 0
        while ended < len(prompts):
            self._stepper.turn(0.0)
            for event in self.scheduler.events():
                if isinstance(event, Failed):
                    raise RuntimeError(f"a prompt failed: {event.reason}, {event.detail}")
                ended += isinstance(event, Drawn | PromptEncoded)
        return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", choices=tuple(CONFIGS), default="tiny")
    parser.add_argument("--tokens", type=int, default=32_000, help="tokens of a round's prompts together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=50.0, help="after the start; no round begins later")
    options = parser.parse_args()
    began_s = time.perf_counter()
    device = torch.device(options.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.json"
        config.write_text(json.dumps(CONFIGS[options.model]))
        loaded = load_model(f"random://{config}?seed=1", dtype, device, CONTEXT)

    def report(stage: str) -> None:
        print(f"{time.perf_counter() - began_s:.1f} s: {stage}", flush=True)

    report("weights")
    engine, dice = Engine(loaded, options.slots, options.tokens, report), random.Random(1)
    loaded_s = time.perf_counter()
    print(f"{options.model} on {options.device}, {options.tokens} tokens a round, {options.rounds} rounds", flush=True)
    print(
        f"{'tokens each':>12} {'round':>7} {'prefill tokens/s':>18} {'embedding tokens/s':>20} {'ratio':>7}", flush=True
    )
    for length in LENGTHS:
        if time.perf_counter() - loaded_s > options.seconds:
            print(f"{length:>12} not measured: {options.seconds:g} s are over", flush=True)
            continue
        count = max(1, options.tokens // length)
        prompts = [tuple(dice.randrange(16, loaded.config.vocab_size) for _ in range(length)) for _ in range(count)]
        measure_length(engine, prompts, options.rounds, loaded_s + options.seconds)


def measure_length(engine: Engine, prompts: list[tuple[int, ...]], rounds: int, until_s: float) -> None:
    """Print a row for each round of prompts of one length, and their medians. The first round always takes place."""
    length, embedding = len(prompts[0]), Encoding(EncodingKind.EMBEDDING)
    first_s = [engine.seconds(prompts, encoding) for encoding in (None, embedding)]
    print(f"{length:>12}   first use: {first_s[0]:.1f} s of prefill, {first_s[1]:.1f} s of embeddings", flush=True)
    rates = list[tuple[float, float]]()
    while not rates or (len(rates) < rounds and time.perf_counter() < until_s):
        prefill_s, encoding_s = (engine.seconds(prompts, encoding) for encoding in (None, embedding))
        rates.append((len(prompts) * length / prefill_s, len(prompts) * length / encoding_s))
        _print_row(length, str(len(rates)), *rates[-1])
    prefill, encoded = (median(side) for side in zip(*rates, strict=True))
    _print_row(length, "median", prefill, encoded)


def _print_row(length: int, name: str, prefill: float, encoded: float) -> None:
    print(f"{length:>12} {name:>7} {prefill:>18,.0f} {encoded:>20,.0f} {encoded / prefill:>7.3f}", flush=True)


if __name__ == "__main__":
    main()
