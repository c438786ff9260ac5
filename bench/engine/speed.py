"""One worker's engine against `transformers` `generate`: prefill and decode tokens per second on one core.

Both run in this process, pinned to the same core with one torch thread, in float32, greedy, on prompts of equal length
(no padding for either), in interleaved rounds with fresh random prompts. Prefill is the time until every sequence
has its first token; decode is the rest.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import transformers
from bench.engine.subjects import Subject, random_100m, tiny
from bench.machine import this_machine
from bench.results import Cell, publish, spread
from transformers import AutoModelForCausalLM, GenerationConfig

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import load_model
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, Failed, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_wire.messages.values import RequestKey, SamplingParams

ROUNDS = 5
BLOCK_TOKENS = 16
CPU = torch.device("cpu")

COLUMNS = (
    "model",
    "batch",
    "prompt",
    "output",
    "phase",
    "baton tokens/s",
    "transformers tokens/s",
    "ratio",
    "same ids",
)

Prompts = Sequence[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    batch: int
    prompt_tokens: int
    output_tokens: int


CASES = {
    "tiny": (Case(1, 128, 128), Case(8, 128, 128), Case(32, 128, 128)),
    "100m": (Case(1, 64, 32), Case(8, 64, 32), Case(32, 64, 32)),
}


@dataclass(frozen=True, slots=True)
class Timing:
    """One generation of a batch."""

    prefill_s: float
    decode_s: float
    ids: tuple[tuple[int, ...], ...]


class Engine(Protocol):
    def generate(self, prompts: Prompts, output_tokens: int) -> Timing: ...


class BatonEngine:
    """Scheduler, stepper and runner as a worker's engine thread drives them."""

    def __init__(self, model: str, batch: int, context_tokens: int) -> None:
        loaded = load_model(model, torch.float32, CPU)
        geometry = kv_geometry(loaded.config, torch.float32, BLOCK_TOKENS)
        blocks = 2 * batch * -(-context_tokens // BLOCK_TOKENS) * len(geometry.windows)
        pool = KvPool(geometry, blocks, torch.float32, CPU)
        config = EngineConfig(
            num_blocks=blocks,
            block_tokens=BLOCK_TOKENS,
            max_slots=batch,
            max_context_tokens=context_tokens,
            windows=geometry.windows,
        )
        self._scheduler = Scheduler(config)
        self._stepper = Stepper(self._scheduler, ModelRunner(loaded, pool, batch))
        self._requests = 0

    def generate(self, prompts: Prompts, output_tokens: int) -> Timing:
        sampling = SamplingParams(max_tokens=output_tokens, temperature=0)
        began = time.perf_counter()
        answers: dict[RequestKey, list[int]] = {}
        for prompt in prompts:
            self._requests += 1
            key = RequestKey(self._requests.to_bytes(16, "big"), 1)
            answers[key] = []
            self._scheduler.submit(SequenceSpec(key, prompt, len(prompt), (0,), sampling, "", began + 3600), began)
        first_s: float | None = None
        open_answers, without_first = len(prompts), len(prompts)
        while open_answers:
            self._stepper.turn(time.perf_counter())
            for event in self._scheduler.events():
                if isinstance(event, Failed):
                    raise RuntimeError(f"{event.key}: {event.reason}: {event.detail}")
                if isinstance(event, Drawn):
                    without_first -= event.first_index == 0
                    answers[event.key] += event.ids
                    open_answers -= event.finish is not None
            if first_s is None and not without_first:
                first_s = time.perf_counter()
        assert first_s is not None
        ids = tuple(tuple(answer_ids) for answer_ids in answers.values())
        return Timing(first_s - began, time.perf_counter() - first_s, ids)


class TransformersEngine:
    """`generate` with its KV cache; prefill is timed as a generation of one token."""

    def __init__(self, subject: Subject) -> None:
        self._model: Any = AutoModelForCausalLM.from_pretrained(subject.folder, dtype=torch.float32).eval()
        self._model.generation_config.eos_token_id = None  # both engines write exactly as many tokens as asked

    def generate(self, prompts: Prompts, output_tokens: int) -> Timing:
        inputs = torch.tensor(prompts)
        prefill_s, _ = self._time(inputs, 1)
        total_s, output = self._time(inputs, output_tokens)
        ids = tuple(tuple(row) for row in output[:, inputs.shape[1] :].tolist())
        return Timing(prefill_s, total_s - prefill_s, ids)

    @torch.inference_mode()
    def _time(self, inputs: torch.Tensor, tokens: int) -> tuple[float, torch.Tensor]:
        config = GenerationConfig(max_new_tokens=tokens, do_sample=False, pad_token_id=0, use_cache=True)
        mask = torch.ones_like(inputs)
        began = time.perf_counter()
        output: torch.Tensor = self._model.generate(inputs, attention_mask=mask, generation_config=config)
        return time.perf_counter() - began, output


def compare(subject: Subject, case: Case, rounds: int) -> list[dict[str, Cell]]:
    """Rows for prefill and decode of one case; the first round of each engine warms up."""
    draw = random.Random(case.batch)
    engines: list[Engine] = [
        BatonEngine(str(subject.folder), case.batch, case.prompt_tokens + case.output_tokens),
        TransformersEngine(subject),
    ]
    timings: list[list[Timing]] = [[], []]
    for round_number in range(rounds + 1):
        prompts = [
            tuple(draw.randrange(5, subject.vocab_size) for _ in range(case.prompt_tokens)) for _ in range(case.batch)
        ]
        for index in (0, 1) if round_number % 2 else (1, 0):
            timing = engines[index].generate(prompts, case.output_tokens)
            if round_number:
                timings[index].append(timing)
    return [_row(subject, case, "prefill", timings), _row(subject, case, "decode", timings)]


def _row(subject: Subject, case: Case, phase: str, timings: list[list[Timing]]) -> dict[str, Cell]:
    tokens = case.batch * (case.prompt_tokens if phase == "prefill" else case.output_tokens - 1)
    ours, theirs = (
        [tokens / (t.prefill_s if phase == "prefill" else t.decode_s) for t in engine] for engine in timings
    )
    ratios = spread([one / other for one, other in zip(ours, theirs, strict=True)])
    pairs = [
        (a, b)
        for one, other in zip(*timings, strict=True)
        for x, y in zip(one.ids, other.ids, strict=True)
        for a, b in zip(x, y, strict=True)
    ]
    return {
        "model": subject.name,
        "batch": case.batch,
        "prompt": case.prompt_tokens,
        "output": case.output_tokens,
        "phase": phase,
        "baton tokens/s": str(spread(ours)),
        "transformers tokens/s": str(spread(theirs)),
        "ratio": str(ratios),
        "ratio median": ratios.median,
        "same ids": f"{sum(a == b for a, b in pairs) / len(pairs):.1%}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=sorted(CASES), default=["tiny", "100m"])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    rounds, threads, machine = options.rounds, options.threads, this_machine()
    torch.set_num_threads(threads)
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cores)
    transformers.utils.logging.set_verbosity_error()
    subjects = {"tiny": tiny, "100m": random_100m}
    rows = [row for name in options.models for case in CASES[name] for row in compare(subjects[name](), case, rounds)]
    notes = [
        f"Median (least–greatest) of {rounds} interleaved rounds, both pinned to cores {cores} with "
        f"{torch.get_num_threads()} torch thread(s), float32, greedy; transformers {transformers.__version__}.",
    ]
    publish("engine_speed", machine, notes, COLUMNS, rows)


if __name__ == "__main__":
    main()
