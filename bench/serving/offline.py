"""Throughput without latency targets: sets of requests through `baton batch`'s own run, on one engine.

`python -m bench offline [--device cuda] [--model CONFIG.json] [--weights fp8] [--kv-cache-dtype fp8] [--sets chat long]
[--block-tokens N]`. Without --model the shape is Llama-3.1-8B's on a GPU and the tiny model's here. Prompts are random
ids, outputs have a fixed length (end ids are ignored), the prefix cache cannot hit. A first small set warms up; loading
and capturing are reported apart.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from bench.engine.gpu import LLAMA_8B
from bench.engine.gpu_model import WEIGHTS
from bench.machine import this_machine
from bench.results import Cell, publish
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from baton_engine.memory.blocks import BlockPool, BlockState
from baton_engine.scheduling.step_load import StepLoad
from baton_gateway.batches.lines import BatchLine
from baton_gateway.text.revision_text import load_text_model
from baton_gateway.workers.request_limits import ModelLimits
from baton_local.batch.execution import GPU_BLOCK_TOKENS, BatchRun
from baton_local.batch.jobs import Desk
from baton_wire.messages.values import Role
from baton_worker.building.engine import build
from baton_worker.building.parts import EngineParts
from baton_worker.config import parse

SEED: Final = 11
NAME: Final = "model"
TINY: Final = Path(__file__).resolve().parents[2] / "examples" / "tiny-llama" / "config.json"
COLUMNS: Final = ("set", "engine", "requests", "prompt tokens", "output tokens", "seconds", "output tokens/s", "note")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompt and output tokens of one request."""

    prompt: int
    output: int


def chat_like(count: int, draw: random.Random) -> list[Lengths]:
    """Log-normal lengths; a thousand of them have 226,040 prompt and 193,441 output tokens, as the rivals' set has."""
    prompts = _scale([draw.lognormvariate(0, 1.0) for _ in range(count)], 226_040 * count // 1000)
    outputs = _scale([draw.lognormvariate(0, 0.7) for _ in range(count)], 193_441 * count // 1000)
    return [Lengths(*pair) for pair in zip(prompts, outputs, strict=True)]


def even(count: int, draw: random.Random) -> list[Lengths]:
    return [Lengths(1000, 500)] * count


SETS: Final = {"chat": (chat_like, 1000), "long": (even, 512)}


def _scale(weights: Sequence[float], total: int) -> list[int]:
    """Whole numbers of at least 4 in proportion to the weights, with that sum."""
    factor = total / sum(weights)
    counts = [max(4, round(weight * factor)) for weight in weights]
    counts[counts.index(max(counts))] += total - sum(counts)
    return counts


@dataclass(slots=True)
class Steps:
    """Time and tokens of the engine's steps."""

    prefill_s: float = 0.0
    decode_s: float = 0.0
    steps: int = 0
    rows: int = 0
    held: int = 0
    """Token places in blocks that sequences held, summed over steps that only decode, …"""
    filled: int = 0
    """… and how many places had a token's KV."""
    fullest: tuple[int, int] = (0, 0)
    """Both in the step that held most."""


class Meter:
    """A meter that the stepper reports every step to."""

    pool: BlockPool
    block_tokens: int

    def __init__(self) -> None:
        self._steps = Steps()

    def begin(self) -> Steps:
        """Count anew."""
        self._steps = Steps()
        return self._steps

    def add(self, step: int, load: StepLoad, seconds: float) -> None:
        steps = self._steps
        if load.prefill_tokens:
            steps.prefill_s += seconds
        else:
            steps.decode_s += seconds
            held = self.pool.count(BlockState.IN_USE) * self.block_tokens
            steps.held += held
            steps.filled += load.kv_tokens
            steps.fullest = max(steps.fullest, (held, load.kv_tokens))
        steps.steps += 1
        steps.rows += load.decode_rows


def lines(lengths: Sequence[Lengths], vocab_size: int, draw: random.Random, tag: str) -> Iterator[BatchLine]:
    for number, request_lengths in enumerate(lengths):
        prompt = draw.choices(range(10, vocab_size), k=request_lengths.prompt)
        body = {
            "model": NAME,
            "prompt": prompt,
            "max_tokens": request_lengths.output,
            "ignore_eos": True,
            "temperature": 0,
        }
        yield BatchLine(f"{tag}-{number}", "/v1/completions", body)


def time_answers(engine: EngineParts, desk: Desk, requests: Sequence[BatchLine]) -> float:
    """Seconds from the first request to the last answer."""
    run = BatchRun(engine, desk, requests, _Sink())
    began = time.perf_counter()
    run.run()
    seconds = time.perf_counter() - began
    if run.progress.refusals.total or run.progress.answered != len(requests):
        raise RuntimeError(f"{run.progress.refusals.total} of {len(requests)} requests were refused")
    return seconds


class _Sink(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        return len(memoryview(data))  # type: ignore[arg-type]


def model_folder(config: dict[str, object], folder: Path) -> str:
    """A folder with the config and a tokenizer of as many ids, as a random model's source."""
    (folder / "config.json").write_text(json.dumps(config))
    size = int(str(config["vocab_size"]))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"\u0120w{number}" for number in range(size - len(alphabet)))][:size]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return f"random://{folder / 'config.json'}"


def measure(
    names: Sequence[str], config: dict[str, object], device: str, share: float, block_tokens: int, kv_dtype: str
) -> None:
    rows: list[dict[str, Cell]] = []
    notes = [torch.cuda.get_device_name() if device == "cuda" else "float32, one thread", f"KV {kv_dtype}"]
    with tempfile.TemporaryDirectory() as place:
        source = model_folder(config, Path(place))
        flags = [f"--model={source}", f"--served-name={NAME}", "--listen=127.0.0.1:0", "--keys=.", f"--device={device}"]
        flags += [f"--dtype={'float32' if device == 'cpu' else 'bfloat16'}", "--max-context-tokens=4096"]
        flags += [f"--max-sequences={64 if device == 'cpu' else 512}", f"--block-tokens={block_tokens}"]
        flags += [f"--kv-cache-dtype={kv_dtype}", "--quantization=auto"]
        meter = Meter()
        began = time.perf_counter()
        engine = build(parse(Role.PREFILL, flags), meter.add, alone=True)
        meter.pool, meter.block_tokens = engine.scheduler.pool, engine.scheduler.config.block_tokens
        notes.append(f"Engine built, graphs captured: {time.perf_counter() - began:.1f} s.")
        text = load_text_model(engine.bundle.data, engine.bundle.sha256)
        limits = ModelLimits(engine.limits.max_context_tokens, engine.limits.vocab_size)
        desk = Desk(text, limits, (NAME,), engine.fingerprint.model_hash, engine.limits.max_choices, 0)
        draw = random.Random(SEED)
        vocab = limits.vocab_size
        time_answers(engine, desk, list(lines(chat_like(max(8, int(64 * share)), draw), vocab, draw, "warm")))
        for name in names:
            make, count = SETS[name]
            lengths = make(max(2, int(count * share)), draw)
            requests = list(lines(lengths, vocab, draw, name))
            steps = meter.begin()
            seconds = time_answers(engine, desk, requests)
            note = (
                f"{steps.steps:,} steps, device {steps.prefill_s:.2f} s with prefill + {steps.decode_s:.2f} s decode, "
                f"{steps.rows / max(1, steps.steps):.0f} decode rows a step; of held KV places, blocks of "
                f"{block_tokens}, {format_unused(steps.held, steps.filled)} unused, {format_unused(*steps.fullest)} "
                f"at most held"
            )
            rows.append(row(name, lengths, seconds, note))
            print(rows[-1], flush=True)
    publish("offline", this_machine(), notes, COLUMNS, rows)


def format_unused(held: int, filled: int) -> str:
    return f"{100 * (1 - filled / max(1, held)):.1f} %"


def row(name: str, lengths: Sequence[Lengths], seconds: float, note: str) -> dict[str, Cell]:
    outputs = sum(request_lengths.output for request_lengths in lengths)
    return {
        "set": name,
        "engine": "baton",
        "requests": len(lengths),
        "prompt tokens": sum(request_lengths.prompt for request_lengths in lengths),
        "output tokens": outputs,
        "seconds": round(seconds, 3),
        "output tokens/s": round(outputs / seconds, 1),
        "note": note,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", type=Path, help="a config.json")
    parser.add_argument("--sets", nargs="+", choices=sorted(SETS), default=["chat", "long"])
    parser.add_argument("--share", type=float, default=1.0, help="part of each set")
    parser.add_argument("--block-tokens", type=int, help="default: `baton batch`'s")
    parser.add_argument("--weights", choices=sorted(WEIGHTS), default="bf16", help="bf16: as the config says")
    parser.add_argument("--kv-cache-dtype", choices=("auto", "fp8"), default="auto")
    options = parser.parse_args()
    if options.model:
        config = json.loads(options.model.read_text())
    else:
        config = dict(LLAMA_8B) if options.device == "cuda" else json.loads(TINY.read_text())
    config |= WEIGHTS[options.weights]
    config = {**config, "max_position_embeddings": max(4096, int(config["max_position_embeddings"]))}
    blocks = options.block_tokens or (GPU_BLOCK_TOKENS if options.device == "cuda" else 16)
    measure(options.sets, config, options.device, options.share, blocks, options.kv_cache_dtype)


if __name__ == "__main__":
    main()
