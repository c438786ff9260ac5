"""A model of random weights over one rank or several, each with a GPU of its own: start, memory, step times, answers.

Several ranks run as a worker runs them: processes that are fed plans by `RankedRunner`, one step ahead, with captured
steps. One rank is a `ModelRunner` in this process. Both get the same weights, by their seed.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from bench.engine.gpu_model import GREEDY, SHAPES, WEIGHTS, StepBench

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import DTYPES, load_model
from baton_engine.model.servable import servable_config
from baton_engine.model.step_cost import rank_costs
from baton_engine.ranks.rank_frames import LoadShare, MakeRunner
from baton_engine.ranks.rank_processes import RankProcesses
from baton_engine.ranks.ranked_runner import RankedRunner
from baton_engine.running.runner import ModelRunner
from baton_engine.scheduling.step_load import LoadMeter, StepLoad
from baton_engine.scheduling.step_plan import OpenSlot, PrefillChunk, Runner, StepPlan
from baton_wire.kv_shape import KvGeometry
from baton_wire.models.decoder_spec import DecoderSpec
from baton_wire.models.sharding.shard_spec import shard_spec
from baton_wire.rules.hardware import Peak, peak_of

TINY: Final[dict[str, Any]] = {
    **SHAPES["Llama-3.2-1B"],
    **{"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 999,
        "max_position_embeddings": 4096,
        "eos_token_id": 1,
        "tie_word_embeddings": False,
    },
}
"""A model for trials of the bench itself, on a CPU too."""
MODELS: Final = {**SHAPES, "tiny": TINY}
BLOCK_TOKENS: Final = {"cpu": 16, "cuda": 64}
PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 4, 200, 48


@dataclass(frozen=True, slots=True)
class Subject:
    """The model that is measured, and over how many ranks."""

    model: str
    weights: str
    ranks: int
    device: str
    blocks: int
    slots: int
    threads: int = 1

    @property
    def dtype(self) -> str:
        return "float32" if self.device == "cpu" else "bfloat16"

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(range(self.ranks)) if self.device == "cuda" else ()


@dataclass(slots=True)
class Started:
    """A runner that is ready, with its pools."""

    spec: DecoderSpec
    runner: Runner
    pools: Sequence[KvPool]
    load_s: float
    """Seconds until the weights are there: of several ranks, from the start of their processes on."""
    ready_s: float
    """Seconds until a step may come."""
    free_bytes: list[int] = field(default_factory=list)
    """Of each GPU, before anything was started."""


@contextmanager
def started(subject: Subject) -> Iterator[Started]:
    """The subject's runner, ended afterwards. Several ranks are killed."""
    config = Path(tempfile.mkdtemp()) / "config.json"
    config.write_text(json.dumps({**MODELS[subject.model], **WEIGHTS[subject.weights]}))
    free = [torch.cuda.mem_get_info(gpu)[0] for gpu in subject.gpus]
    with _one_rank(config, subject) if subject.ranks == 1 else _several_ranks(config, subject) as ready:
        ready.free_bytes = free
        for pool in ready.pools:
            _fill(pool)
        yield ready


@contextmanager
def _one_rank(config: Path, subject: Subject) -> Iterator[Started]:
    begin = time.perf_counter()
    device = torch.device("cuda", 0) if subject.device == "cuda" else torch.device("cpu")
    torch.set_num_threads(subject.threads)
    loaded = load_model(f"random://{config}", DTYPES[subject.dtype], device)
    _wait(device)
    load_s = time.perf_counter() - begin
    geometry = kv_geometry(loaded.config, loaded.dtype, BLOCK_TOKENS[subject.device])
    pool = KvPool(geometry, subject.blocks, loaded.dtype, device, with_checksums=False)
    runner = ModelRunner(loaded, pool, subject.slots)
    _wait(device)
    yield Started(loaded.config, runner, [pool], load_s, time.perf_counter() - begin)


@contextmanager
def _several_ranks(config: Path, subject: Subject) -> Iterator[Started]:
    begin = time.perf_counter()
    spec, dtype, block_tokens = servable_config(config), DTYPES[subject.dtype], BLOCK_TOKENS[subject.device]
    processes = RankProcesses.start(subject.ranks)
    try:
        processes.load(LoadShare(f"random://{config}", subject.dtype, None, subject.threads, subject.gpus))
        load_s = time.perf_counter() - begin
        shapes = [
            kv_geometry(shard_spec(spec, rank, subject.ranks), dtype, block_tokens) for rank in range(subject.ranks)
        ]
        order = MakeRunner(subject.blocks, block_tokens, subject.slots, decodes=True)
        pools = _map_pools(processes, order, shapes, dtype, subject)
        yield Started(spec, RankedRunner(processes), pools, load_s, time.perf_counter() - begin)
    finally:
        processes.close()


def _map_pools(
    processes: RankProcesses, order: MakeRunner, shapes: Sequence[KvGeometry], dtype: torch.dtype, subject: Subject
) -> list[KvPool]:
    size = order.blocks * shapes[0].block_bytes
    if not subject.gpus:
        memories = processes.make_runners(order, size)
        return [
            KvPool(shape, order.blocks, dtype, torch.device("cpu"), memory=memory.bytes)
            for shape, memory in zip(shapes, memories, strict=True)
        ]
    devices = [torch.device("cuda", gpu) for gpu in subject.gpus]
    handles = processes.make_runners_on_gpus(order)
    return [
        KvPool(shape, order.blocks, dtype, device, with_checksums=False, memory=handle.map(size, device))
        for shape, device, handle in zip(shapes, devices, handles, strict=True)
    ]


def _fill(pool: KvPool) -> None:
    device = pool.tensor.device
    for block in pool.tensor:
        block.copy_(torch.randn(block.shape, dtype=torch.bfloat16, device=device))
    _wait(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


Line = dict[str, Any]


def measure(
    subject: Subject,
    rows: Sequence[int],
    prompts: Sequence[int],
    emit: Callable[[Line], None],
    *,
    context: int = 1_024,
    steps: int = 100,
    restarts: bool = False,
) -> None:
    """Emit a line for each figure. `restarts`: start once more, when all kernels are compiled."""
    named = {"model": subject.model, "weights": subject.weights, "ranks": subject.ranks}
    with torch.inference_mode(), started(subject) as ready:
        gpus = subject.gpus
        used = [
            (free - torch.cuda.mem_get_info(gpu)[0]) / 2**30 for gpu, free in zip(gpus, ready.free_bytes, strict=True)
        ]
        emit({**named, "what": "start", "load_s": ready.load_s, "ready_s": ready.ready_s, "gib_by_gpu": used})
        geometry = ready.pools[0].geometry
        vocabulary = min(100_000, ready.spec.vocab_size)
        bench = StepBench(ready.runner, subject.blocks, len(geometry.windows), geometry.block_tokens, vocabulary)
        costs = Costs(ready.spec, subject)
        emit({**named, "what": "answers", "ids": answers(bench)})
        for batch in rows:
            times = bench.decode(batch, context, steps=steps)
            line = {"rows": batch, "ms": times.step_ms, "device_ms": times.device_ms, "launch_ms": times.host_ms}
            emit({**named, "what": "decode", **line, **costs.decode(batch, context, times.step_ms)})
        for tokens in prompts:
            ms = bench.prefill(tokens)
            emit({**named, "what": "prefill", "tokens": tokens, "ms": ms, **costs.prefill(tokens, ms)})
        del bench, ready
    if restarts:
        if subject.gpus:
            torch.cuda.empty_cache()
        with torch.inference_mode(), started(subject) as ready:
            emit({**named, "what": "start again", "load_s": ready.load_s, "ready_s": ready.ready_s})


def answers(bench: StepBench) -> list[list[int]]:
    """Greedy answers to a few prompts, all at once."""
    draw = torch.Generator().manual_seed(5)
    prompts = torch.randint(5, 900, (PROMPTS, PROMPT_TOKENS), generator=draw).tolist()
    slots = tuple(range(PROMPTS))
    opens = tuple(OpenSlot(slot, GREEDY, 0, tuple(prompts[slot]), (), 0, None) for slot in slots)
    blocks = bench.tables(PROMPTS, -(-(PROMPT_TOKENS + ANSWER_TOKENS) // bench.block_tokens))
    chunks = tuple(PrefillChunk(slot, 0, tuple(prompts[slot]), (slot,)) for slot in slots)
    ids: list[list[int]] = [[] for _ in slots]
    plans = [StepPlan(0, opens, blocks, prefill=chunks)]
    plans += [StepPlan(number, decode=slots) for number in range(1, ANSWER_TOKENS)]
    for plan in plans:
        for entry in bench.runner.execute(plan).tokens:
            ids[entry.slot] += entry.ids
    return ids


def agreement(whole: Sequence[Sequence[int]], shared: Sequence[Sequence[int]]) -> tuple[int, int]:
    """How many greedy tokens are equal, up to the first other one of each answer, and of how many."""
    equal = 0
    for one, other in zip(whole, shared, strict=True):
        differing = (place for place, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        equal += next(differing, len(one))
    return equal, sum(map(len, whole))


class Costs:
    """The least bytes and operations of a step at each rank, as shares of what its GPU could do meanwhile."""

    def __init__(self, spec: DecoderSpec, subject: Subject) -> None:
        element_bytes = DTYPES[subject.dtype].itemsize
        self._costs = rank_costs(spec, subject.ranks, element_bytes, element_bytes)
        self._windows = tuple(sorted({layer.mixer.window for layer in spec.layers if layer.mixer.window is not None}))
        self._slots = subject.slots
        self._peak: Peak | None = peak_of(torch.cuda.get_device_name(0)) if subject.gpus else None

    def decode(self, rows: int, context: int, ms: float) -> Line:
        opens = tuple(OpenSlot(slot, GREEDY, 0, (1,), (), context, 1) for slot in range(rows))
        return self._shares(StepPlan(0, opens, decode=tuple(range(rows))), ms)

    def prefill(self, tokens: int, ms: float) -> Line:
        opens = (OpenSlot(0, GREEDY, 0, (1,), (), 0, None),)
        return self._shares(StepPlan(0, opens, prefill=(PrefillChunk(0, 0, (5,) * tokens, (0,)),)), ms)

    def _shares(self, plan: StepPlan, ms: float) -> Line:
        load: StepLoad = LoadMeter(self._slots, self._windows).load(plan)
        costs = [cost.of(load) for cost in self._costs]
        line: Line = {"gb_by_rank": [cost.bytes / 1e9 for cost in costs]}
        if self._peak is not None:
            line["mbu_by_rank"] = [cost.bytes / self._peak.bytes_per_s / ms * 1e3 for cost in costs]
            line["mfu_by_rank"] = [cost.flops / self._peak.flops / ms * 1e3 for cost in costs]
        return line
