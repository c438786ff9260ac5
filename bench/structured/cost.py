"""The cost of answers that follow a grammar: `python -m bench structured_cost [--gpu]`.

On a CPU a whole engine over `examples/tiny-llama`, batches of 8. On a GPU decode steps of the shape of Llama-3.1-8B,
one ahead, with a vocabulary of 128,256: words of Python's standard library, and pairs of words, as byte-level BPE.
Three kinds of batch in turn: no row follows a grammar, all rows do, one row does. The grammar is what a gateway
makes of a schema. That asks for more items than fit, so no answer ends.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from bench.machine import this_machine
from bench.results import Cell, percentile, publish, spread

from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.grammars.vocabulary import read_vocabulary
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import load_model
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, Failed, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_engine.scheduling.step_plan import OpenSlot, StepPlan
from baton_gateway.structured_outputs.grammar_builder import build_grammar
from baton_gateway.structured_outputs.output_format import json_format
from baton_wire.messages.values import RequestKey, SamplingParams

ROOT: Final = Path(__file__).resolve().parents[2]
TINY: Final = ROOT / "examples" / "tiny-llama"
CPU: Final = torch.device("cpu")
END: Final = 4
BATCH, PROMPT, OUTPUT = 8, 64, 128
ROUNDS: Final = 9
ITEM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "kind": {"enum": ["bird", "fish", "mammal"]},
        "count": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "kind", "count", "tags"],
    "additionalProperties": False,
}
SCHEMA: Final[dict[str, Any]] = {"type": "array", "items": ITEM, "minItems": 1_000}
SHAPE: Final = json_format(SCHEMA, "schema", is_strict=True)
GRAMMAR: Final = SHAPE.grammar(build_grammar(SHAPE))
PLAIN: Final = SamplingParams(max_tokens=OUTPUT, temperature=0.0)
BOUND: Final = SamplingParams(max_tokens=OUTPUT, temperature=0.0, grammar=GRAMMAR, stop_token_ids=(END,))


class MaskTimes:
    """Collects what a `RowMasks` says of its masks."""

    def __init__(self, masks: RowMasks) -> None:
        self.seconds: list[float] = []
        masks.observe_masks = self.seconds.append

    def take_us(self) -> list[float]:
        """Microseconds of each draw since the last call."""
        taken = [seconds * 1e6 for seconds in self.seconds]
        self.seconds.clear()
        return taken


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    bound: Callable[[int], int]
    """The number of a batch's rows that follow the grammar."""


KINDS: Final = (
    Kind("no row", lambda batch: 0),
    Kind("all rows", lambda batch: batch),
    Kind("one row", lambda batch: 1),
)


# A whole engine on the CPU --------------------------------------------------------------------------------------------


class TinyEngine:
    """Scheduler, stepper and runner as a worker's engine thread drives them."""

    def __init__(self) -> None:
        loaded = load_model(TINY, torch.float32, CPU)
        blocks = 2 * BATCH * -(-(PROMPT + OUTPUT) // 16)
        pool = KvPool(kv_geometry(loaded.config, torch.float32, 16), blocks, torch.float32, CPU)
        text = (TINY / "tokenizer.json").read_text()
        masks = RowMasks(GrammarCompiler(lambda: read_vocabulary(text, (END,), loaded.config.vocab_size)), BATCH)
        self.mask_times = MaskTimes(masks)
        self._scheduler = Scheduler(EngineConfig(blocks, 16, BATCH, PROMPT + OUTPUT))
        self._stepper = Stepper(self._scheduler, ModelRunner(loaded, pool, BATCH, masks))
        self._requests = 0

    def tpot_ms(self, bound: int, chance: random.Random) -> float:
        """Processor time of a step, from the last first token to the end; `bound` rows follow the grammar."""
        began = time.perf_counter()
        for row in range(BATCH):
            self._requests += 1
            prompt = tuple(chance.randrange(5, 1_000) for _ in range(PROMPT))
            sampling = BOUND if row < bound else PLAIN
            key = RequestKey(self._requests.to_bytes(16, "big"), 1)
            self._scheduler.submit(SequenceSpec(key, prompt, PROMPT, (0,), sampling, "", began + 600), began)
        first_s, running, without_first = time.process_time(), BATCH, BATCH
        while running:
            self._stepper.turn(time.perf_counter())
            for event in self._scheduler.events():
                if isinstance(event, Failed):
                    raise RuntimeError(f"{event.reason}: {event.detail}")
                if isinstance(event, Drawn):
                    running -= event.finish is not None
                    without_first -= event.first_index == 0
                    first_s = time.process_time() if event.first_index == 0 and not without_first else first_s
        return (time.process_time() - first_s) / (OUTPUT - 1) * 1e3


def on_cpu(rounds: int) -> list[dict[str, Cell]]:
    engine, chance = TinyEngine(), random.Random(1)
    times: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    masks: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind in KINDS if number % 2 else KINDS[::-1]:
            step_ms = engine.tpot_ms(kind.bound(BATCH), chance)
            mask_us = engine.mask_times.take_us()
            if number:
                times[kind.name].append(step_ms)
                masks[kind.name] += mask_us
    return rows_of("tiny-llama, CPU", BATCH, times, masks)


def rows_of(
    subject: str, batch: int, times: dict[str, list[float]], masks: dict[str, list[float]]
) -> list[dict[str, Cell]]:
    """Ratios are of neighbouring rounds: a machine's speed drifts."""
    plain = times[KINDS[0].name]
    return [
        {
            "subject": subject,
            "batch": batch,
            "with a grammar": name,
            "step ms": str(spread(steps_ms)),
            "times no row": str(spread([one / other for one, other in zip(steps_ms, plain, strict=True)])),
            "masks µs": statistics.median(masks[name]) if masks[name] else None,
            "of 100, slowest": percentile(masks[name], 99) if masks[name] else None,
            "slowest": max(masks[name]) if masks[name] else None,
        }
        for name, steps_ms in times.items()
    ]


# Decode steps on a GPU ------------------------------------------------------------------------------------------------


def large_vocabulary(size: int) -> str:
    """A tokenizer.json of `size` ids: bytes, then beginnings of the commonest words, longer ones after shorter."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = sorted(set(range(0x100)) - printable)
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(others)}
    words: Counter[str] = Counter()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        words.update(re.findall(r" ?[A-Za-z]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9]+|\s+", path.read_text("utf-8", "replace")))
    common = [word for word, _ in words.most_common()]
    compounds = [first + second.strip().title() for first in common[:600] for second in common[:600]]
    vocab = {letters[byte]: byte for byte in range(0x100)}
    merges: list[str] = []
    for word in common + compounds:
        text = "".join(letters[byte] for byte in word.encode()[:16])
        for end in range(2, len(text) + 1):
            if text[:end] not in vocab and len(vocab) < size - 256:
                vocab[text[:end]] = len(vocab)
                merges.append(f"{text[: end - 1]} {text[end - 1]}")
    special = [
        {"id": len(vocab) + n, "content": f"<|special_{n}|>", "special": True, "normalized": False}
        | {"single_word": False, "lstrip": False, "rstrip": False}
        for n in range(size - len(vocab))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "byte_fallback": False, "ignore_merges": False}
    return json.dumps(
        {"version": "1.0", "added_tokens": special, "pre_tokenizer": level, "decoder": level, "model": model}
        | {"truncation": None, "padding": None, "normalizer": None, "post_processor": None}
    )


class GpuDecode:
    """Decode steps of one model whose slots hold random KV."""

    def __init__(self, shape: str, slots: int, context: int = 1_024, steps: int = 100) -> None:
        from bench.engine.gpu_model import BLOCK_TOKENS, SHAPES, Bench

        vocab_size, began = SHAPES[shape]["vocab_size"], time.perf_counter()
        vocabulary = read_vocabulary(large_vocabulary(vocab_size), (END,), vocab_size)
        self.read_s = time.perf_counter() - began
        masks = RowMasks(GrammarCompiler(lambda: vocabulary), slots)
        self.mask_times = MaskTimes(masks)
        self._context, self._steps = context, steps
        self._blocks = -(-(context + 2 * steps) // BLOCK_TOKENS)
        self._bench = Bench(shape, self._blocks * slots, slots, masks=masks)
        self.runner = self._bench.runner

    def step_ms(self, batch: int, bound: int, warm: int = 10) -> float:
        """Wall time of a step, one ahead, after a few that are not counted."""
        opens = tuple(
            OpenSlot(slot, BOUND if slot < bound else PLAIN, 0, (1, 2), (), self._context, 7 * slot + 3)
            for slot in range(batch)
        )
        plan = StepPlan(0, decode=tuple(range(batch)))
        self.runner.execute(StepPlan(0, opens, self._bench.tables(batch, self._blocks)))
        self.runner.launch(plan)
        start = time.perf_counter()
        for step in range(self._steps + warm):
            if step == warm:
                self.mask_times.take_us()
                start = time.perf_counter()
            self.runner.launch(plan)
            if failures := self.runner.collect().failures:
                raise RuntimeError(failures[0].detail)
        step_ms = (time.perf_counter() - start) / self._steps * 1e3
        self.runner.collect()
        return step_ms


def on_gpu(rounds: int) -> tuple[list[str], list[dict[str, Cell]]]:
    from bench.engine.gpu_model import gpu_facts

    shape, rows = "Llama-3.1-8B", list[dict[str, Cell]]()
    decode = GpuDecode(shape, 128)
    for batch in (1, 32, 128):
        times: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
        mask_us: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
        for number in range(rounds):
            for kind in KINDS if number % 2 else KINDS[::-1]:  # in a batch of one row, "one row" is the whole batch
                times[kind.name].append(decode.step_ms(batch, kind.bound(batch)))
                mask_us[kind.name] += decode.mask_times.take_us()
        rows += rows_of(f"{shape}, context 1024", batch, times, mask_us)
    return [*gpu_facts(), f"vocabulary read in {decode.read_s:.1f} s"], rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="decode steps of a large model instead of the tiny one")
    parser.add_argument("--rounds", type=int, default=None)
    options = parser.parse_args()
    columns = [
        "subject",
        "batch",
        "with a grammar",
        "step ms",
        "times no row",
        "masks µs",
        "of 100, slowest",
        "slowest",
    ]
    if options.gpu:
        notes, rows = on_gpu(options.rounds or 3)
        publish("structured_cost_gpu", this_machine(), notes, columns, rows)
        return
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    rows = on_cpu(options.rounds or ROUNDS)
    notes = [f"prompts of {PROMPT}, {OUTPUT} tokens, greedy; processor time of one core, ratios of neighbouring rounds"]
    publish("structured_cost", this_machine(), notes, columns, rows)


if __name__ == "__main__":
    main()
