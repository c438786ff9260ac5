"""Tokens/s of long prompts by the number of stages of a prefill worker, on a CPU, each stage with one thread.

    python -m bench stages --stages 1 2 4 --prompt 4000 --chunk 250

The engine is that of a worker with `--pipeline-parallel`; 1 is the worker's process alone. Each round computes the same
prompts with every number of stages in turn. `limit` is what chunks allow: with M chunks in S stages, S·M / (M + S - 1).
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import ExitStack
from itertools import count
from statistics import median

from bench.engine.subjects import random_100m
from bench.machine import this_machine
from bench.results import Cell, publish

from baton_engine.scheduling.events import Drawn, Failed, SequenceSpec
from baton_wire.messages.values import RequestKey, Role, SamplingParams
from baton_worker.building import engine, ranked_engine
from baton_worker.building.parts import EngineParts
from baton_worker.config import parse

NUMBERS = count(1)


def built(ended: ExitStack, stages: int, options: argparse.Namespace) -> EngineParts:
    """The engine of a prefill worker with these stages, which is closed with `ended`."""
    flags = ["--served-name=m", "--listen=127.0.0.1:0", "--keys=/nowhere", f"--model={random_100m().folder}"]
    flags += [f"--max-context-tokens={options.prompt + 16}", f"--max-step-tokens={options.chunk}"]
    flags += [f"--pipeline-parallel={stages}", f"--kv-cache-bytes={1 << 30}"]
    config = parse(Role.PREFILL, flags)
    build = ranked_engine.build if config.has_ranks else engine.build
    parts = build(config, lambda step, load, seconds: None)
    ended.callback(parts.close)
    if parts.masks is not None:
        ended.callback(parts.masks.compiler.close)
    return parts


def prompts_s(parts: EngineParts, prompts: list[tuple[int, ...]]) -> float:
    """Seconds until every prompt has its first token."""
    began_s, drawn = time.perf_counter(), 0
    for prompt in prompts:
        key = RequestKey(next(NUMBERS).to_bytes(16), 1)
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        parts.scheduler.submit(SequenceSpec(key, prompt, len(prompt), (0,), sampling, "", 1e12), 0.0)
    while drawn < len(prompts):
        parts.stepper.turn(time.perf_counter() - began_s)
        for event in parts.scheduler.events():
            if isinstance(event, Failed):
                raise RuntimeError(event.detail)
            drawn += isinstance(event, Drawn)
    return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--prompt", type=int, default=2_048, help="tokens of a prompt (default %(default)s)")
    parser.add_argument("--prompts", type=int, default=1, help="prompts at a time (default %(default)s)")
    parser.add_argument("--chunk", type=int, default=128, help="tokens of a step (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    machine, chance = this_machine(), random.Random(5)
    took: dict[int, list[float]] = {stages: [] for stages in options.stages}
    with ExitStack() as ended:
        engines = {stages: built(ended, stages, options) for stages in options.stages}
        for _ in range(options.rounds):
            prompts = [tuple(chance.choices(range(10, 200), k=options.prompt)) for _ in range(options.prompts)]
            for stages, parts in engines.items():
                took[stages].append(prompts_s(parts, prompts))
    tokens, first = options.prompt * options.prompts, options.stages[0]
    chunks = -(-tokens // options.chunk)
    rows: list[dict[str, Cell]] = [
        {
            "stages": stages,
            "tokens/s, median": tokens / median(seconds),
            "least": tokens / max(seconds),
            "most": tokens / min(seconds),
            f"of {first}, in the same round": median(a / b for a, b in zip(took[first], seconds, strict=True)),
            "limit": stages * chunks / (chunks + stages - 1),
        }
        for stages, seconds in took.items()
    ]
    notes = [
        f"{options.rounds} rounds of {options.prompts} prompts of {options.prompt:,} tokens, in steps of "
        f"{options.chunk} tokens: a random Llama of 100 M parameters, float32."
    ]
    publish("stages", machine, notes, tuple(rows[0]), rows)


if __name__ == "__main__":
    main()
