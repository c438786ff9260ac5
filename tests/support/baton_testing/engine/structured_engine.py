"""A real engine over `examples/tiny-llama` whose rows follow grammars, and what came out of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache

import torch

from baton_engine.grammars.grammar_compiler import GrammarCompiler
from baton_engine.grammars.row_masks import RowMasks
from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.ranks.ranked_runner import RankedRunner
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, Failed, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_testing.engine.grammars import compiling
from baton_testing.engine.rank_group import RankGroup
from baton_testing.engine.tiny_llama import FOLDER
from baton_testing.engine.toy_engine import FAR, key
from baton_wire.messages.values import SamplingParams

BLOCK_TOKENS = 16


@cache
def loaded(device: str = "cpu") -> LoadedModel:
    return load_model(FOLDER, torch.float32, torch.device(device))


class LateRunner(ModelRunner):
    """Says that no step is done, as a device would: the next one is launched before the last is collected."""

    def is_done(self) -> bool:
        return False


@dataclass(slots=True, eq=False)
class StructuredEngine:
    scheduler: Scheduler
    runner: ModelRunner | RankedRunner
    stepper: Stepper
    outputs: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By request number and choice; forced ids are not repeated."""
    failures: dict[int, Failed] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    """Numbers of the requests of which some choice has come to its end."""

    def run(self, *specs: SequenceSpec, turns: int = 20_000) -> dict[tuple[int, int], list[int]]:
        """Until nothing moves any more."""
        for spec in specs:
            self.scheduler.submit(spec, 0.0)
        for _ in range(turns):
            moved = self.stepper.turn(0.0)
            self.look()
            if not moved and self.stepper.idle:
                return self.outputs
            if not moved:
                time.sleep(0.001)  # a grammar is being compiled
        raise AssertionError("it goes on for ever")

    def look(self) -> None:
        """Take what came of the turns since the last look."""
        for event in self.scheduler.events():
            number = int.from_bytes(event.key.request, "big")
            if isinstance(event, Drawn):
                assert number not in self.failures, "a token after the failure"
                self.outputs.setdefault((number, event.choice), []).extend(event.ids)
                if event.finish is not None:
                    self.ended.add(number)
            elif isinstance(event, Failed):
                assert number not in self.failures, "reported twice"
                self.failures[number] = event
        self.scheduler.check()


@contextmanager
def structured_engine(  # noqa: PLR0913 - what differs from a plain engine, keyword only
    *,
    late: bool = False,
    blocks: int = 400,
    slots: int = 16,
    max_step_tokens: int = 256,
    device: str = "cpu",
    model: LoadedModel | None = None,
    compiler: GrammarCompiler | None = None,
    ranks: RankGroup | None = None,
) -> Iterator[StructuredEngine]:
    """With the vocabulary of `examples/tiny-llama`, and that model unless another is given. `ranks` compute it, with as
    many blocks and slots, instead of this process."""
    context = 256
    model = model or loaded(device)
    kind = LateRunner if late else ModelRunner
    pool = KvPool(kv_geometry(model.config, torch.float32, BLOCK_TOKENS), blocks, torch.float32, model.device)
    config = EngineConfig(blocks, BLOCK_TOKENS, slots, context, max_step_tokens)
    with compiling() if compiler is None else nullcontext(compiler) as grammars:
        scheduler = Scheduler(config, grammars.is_ready)
        masks = RowMasks(grammars, slots)
        runner = kind(model, pool, slots, masks) if ranks is None else ranks.runner(masks)
        yield StructuredEngine(scheduler, runner, Stepper(scheduler, runner))


def structured_spec(
    number: int,
    prompt: Sequence[int],
    sampling: SamplingParams,
    *,
    choices: int = 1,
    forced: Sequence[int] = (),
    hold: bool = False,
) -> SequenceSpec:
    asked = tuple(range(choices))
    return SequenceSpec(key(number), (*prompt, *forced), len(prompt), asked, sampling, "", FAR, hold)
