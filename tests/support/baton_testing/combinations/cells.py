"""Carries out one cell, and says how it ended."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.blocks import BlockOwner
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.scheduler import Scheduler
from baton_gateway.reporting.outcome import Outcome
from baton_testing.combinations.fleet import BLOCK_TOKENS, CONTEXT_TOKENS, SLOTS, Client, Fleet, HangsError
from baton_testing.combinations.plan import Cell, Verdict, WayThrough
from baton_testing.combinations.subjects import Subjects
from baton_testing.engine.grammars import END, VOCAB, compiling, of_regex
from baton_testing.engine.structured_engine import StructuredEngine, structured_spec
from baton_testing.kv_transfer.builders import key_directory
from baton_wire.messages.values import RequestKey, Role, SamplingParams
from baton_wire.models.errors import ModelError
from baton_worker.building.engine import build
from baton_worker.config import parse
from baton_worker.errors import ConfigError

MAX_TOKENS: Final = 14
GRAMMAR: Final = of_regex("[a-z ,]{40,80}")
RIVAL_TOKENS: Final = 40
"""Tokens of a sequence that grows next to the one under test, until one of the two has to go."""
PIECES, WHOLE = 24, 256
NUMBER: Final = 1 << 64
"""Number of the request under test; other requests have small ones."""
MISSED: Final = "the way was not taken"
TRIES: Final = 3
"""On a busy machine a rival can end before the request comes that it was to preempt."""


@dataclass(frozen=True, slots=True)
class Result:
    verdict: Verdict
    why: str = ""


class Matrix:
    """Runs cells one after the other. A context: compiler and event loop end with it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._subjects = Subjects(folder)
        self._references: dict[tuple[str, ...], dict[int, list[int]]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Matrix:
        self._compiler = self._stack.enter_context(compiling())
        self._keys = key_directory(self._folder / "keys")
        self._runner = self._stack.enter_context(asyncio.Runner())
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, cell: Cell) -> Result:
        try:
            self._check_kv(cell)
            model = self._subjects.model(cell.of("family"), cell.of("weights"))
        except (ConfigError, ModelError) as error:
            named = any(word in str(error) for word in ("--kv-cache-dtype", "quantization_config"))
            return Result(Verdict.REFUSED if named else Verdict.SILENT, str(error))
        wanted = self._reference(cell, model)
        try:
            result = self._runner.run(self._serve(cell, model, wanted))
            for _ in range(TRIES - 1):
                if not result.why.startswith(MISSED):
                    break
                result = self._runner.run(self._serve(cell, model, wanted))
        except HangsError:
            return Result(Verdict.HANGS)
        return result

    def _check_kv(self, cell: Cell) -> None:
        """The worker's own start refuses what this device cannot hold."""
        if cell.of("kv") != "auto":
            here = str(self._folder)
            arguments = ["--model", here, "--served-name", "m", "--listen", "127.0.0.1:0", "--keys", here]
            asked = parse(Role.DECODE, [*arguments, "--device", "cpu", "--kv-cache-dtype", cell.of("kv")])
            build(asked, lambda step, load, seconds: None)

    def reference(self, cell: Cell) -> dict[int, list[int]]:
        """Tokens of each choice of the same request alone: one engine, whole prompts, nothing cached."""
        return self._reference(cell, self._subjects.model(cell.of("family"), cell.of("weights")))

    def _reference(self, cell: Cell, model: LoadedModel) -> dict[int, list[int]]:
        place = (*cell.row, str(cell.seed))
        if place not in self._references:
            choices = int(cell.of("choices"))
            spec = structured_spec(1, prompt_of(cell), sampling_of(cell), choices=choices)
            geometry = kv_geometry(model.config, model.dtype, BLOCK_TOKENS)
            blocks = 64 * len(geometry.windows)
            pool = KvPool(geometry, blocks, model.dtype, torch.device("cpu"))
            scheduler = Scheduler(
                EngineConfig(blocks, BLOCK_TOKENS, SLOTS, CONTEXT_TOKENS, WHOLE, windows=geometry.windows)
            )
            runner = ModelRunner(model, pool, SLOTS, RowMasks(self._compiler, SLOTS))
            outputs = StructuredEngine(scheduler, runner, Stepper(scheduler, runner)).run(spec)
            self._references[place] = {choice: outputs[1, choice] for choice in range(choices)}
        return self._references[place]

    async def _serve(self, cell: Cell, model: LoadedModel, wanted: dict[int, list[int]]) -> Result:
        fleet = Fleet(model, self._compiler, self._keys)
        step = PIECES if cell.has("chunks", "pieces") else WHOLE
        choices = int(cell.of("choices"))
        tight = 9 if choices == 1 else 11
        await fleet.start(
            decode_blocks=tight if cell.way is WayThrough.PREEMPTION else 64, prefill_step=step, decode_step=step
        )
        try:
            alone = cell.way is WayThrough.ALONE
            tokens, sampling = prompt_of(cell), sampling_of(cell)
            if cell.has("prefix", "hit"):
                before = (*tokens[:48], *reversed(tokens[48:]))
                first = fleet.ask(1, before, SamplingParams(max_tokens=2, temperature=0.0), 1, alone)
                await fleet.until(lambda: first.end is not None)
            rival = None
            if cell.way is WayThrough.PREEMPTION:
                other, growing = tuple(reversed(tokens)), SamplingParams(max_tokens=RIVAL_TOKENS, temperature=0.0)
                rival = fleet.ask(NUMBER << 1, other, growing, 1, alone)
                await fleet.until(lambda: rival.fewest >= 2)
            client = fleet.ask(NUMBER, tokens, sampling, choices, alone)
            await self._disturb(cell, fleet, client)
            await fleet.until(lambda: client.end is not None and (rival is None or rival.end is not None))
            return _judge(cell, fleet, client, wanted)
        finally:
            await fleet.stop()

    async def _disturb(self, cell: Cell, fleet: Fleet, client: Client) -> None:
        first = fleet.named("D1")
        if cell.way is WayThrough.PREEMPTION:  # the rival waits while the other's KV comes, so that both grow at once
            await fleet.until(lambda: first.scheduler.stats().blocks_reserved > 0 or client.fewest >= 1)
            first.is_stopped = True
            await fleet.until(lambda: client.fewest >= 1)
            pool, hog = first.scheduler.pool, BlockOwner(RequestKey(bytes(16), 1), None)
            if first.scheduler.config.has_windows:  # of a pool that holds a longest prompt, both together keep less
                pool.allocate(hog, pool.available // pool.groups)
            first.is_stopped = False
            await fleet.until(lambda: first.scheduler.stats().preemptions > 0 or client.end is not None)
            pool.release(hog, 0)
        elif cell.way is WayThrough.RETARGET:
            first.is_stopped = True  # it never grants room: the prompt is computed, its KV stays
            await fleet.until(lambda: client.fewest >= 1 or client.end is not None)
            await fleet.kill("D1")
        elif cell.way is WayThrough.MIGRATION:
            await fleet.until(lambda: client.fewest >= 3 or client.end is not None)
            await fleet.kill("D1")


def _judge(cell: Cell, fleet: Fleet, client: Client, wanted: dict[int, list[int]]) -> Result:
    end = client.end
    assert end is not None
    if end.outcome is not Outcome.FINISHED:
        return Result(Verdict.SILENT, f"{end.outcome}: {end.problem}")
    if client.outputs != wanted:
        return Result(Verdict.DIFFERS, f"{client.outputs} is not {wanted}")
    taken = {
        WayThrough.ALONE: "Prefill" not in client.sent,
        WayThrough.PAIR: client.sent[:2] == ["Reserve", "Prefill"] and "Retarget" not in client.sent,
        WayThrough.RETARGET: "Retarget" in client.sent and client.sent.count("Prefill") == 1,
        WayThrough.MIGRATION: client.life.migrations > 0,
        WayThrough.PREEMPTION: fleet.named("D1").scheduler.stats().preemptions > 0,
    }
    if not taken[cell.way]:
        return Result(Verdict.SILENT, f"{MISSED}: {client.sent}")
    if cell.has("prefix", "hit"):
        prompts = fleet.named("D1" if cell.way is WayThrough.ALONE else "P").scheduler.stats()
        if prompts.cached_prompt_tokens == 0:
            return Result(Verdict.SILENT, "no prefix was hit")
    return Result(Verdict.EQUAL)


def prompt_of(cell: Cell) -> tuple[int, ...]:
    chance = random.Random(cell.seed * 1000 + 7)
    return tuple(chance.randrange(5, VOCAB) for _ in range(chance.randint(58, 62)))


def sampling_of(cell: Cell) -> SamplingParams:
    is_penalised, is_sampled = cell.has("penalties", "all"), cell.has("drawing", "sampled")
    follows = cell.has("answer", "grammar")
    return SamplingParams(
        max_tokens=MAX_TOKENS,
        seed=cell.seed,
        temperature=0.9 if is_sampled else 0.0,
        top_k=50 if is_sampled else None,
        top_p=0.95 if is_sampled else 1.0,
        presence_penalty=0.6 if is_penalised else 0.0,
        frequency_penalty=0.4 if is_penalised else 0.0,
        repetition_penalty=1.2 if is_penalised else 1.0,
        stop_token_ids=(END,) if follows else (),
        grammar=GRAMMAR if follows else None,
    )
