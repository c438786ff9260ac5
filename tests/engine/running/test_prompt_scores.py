"""Log probabilities of prompt tokens: those of transformers, however a prompt is cut, batched or cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from baton_engine.memory.kv_pool import KvPool, kv_geometry
from baton_engine.running import prompt_scores
from baton_engine.running.runner import ModelRunner
from baton_engine.running.stepper import Stepper
from baton_engine.scheduling.engine_config import EngineConfig
from baton_engine.scheduling.events import Drawn, PromptScored, SchedulerEvent, SequenceSpec
from baton_engine.scheduling.scheduler import Scheduler
from baton_testing.engine.models import FAMILIES, reference_logits
from baton_wire.messages.values import PromptLogprob, RequestKey, SamplingParams

BLOCK_TOKENS = 16
ATOL = 1e-4
"""Tolerance of float32 logits: those of some families are large."""


def spec(number: int, tokens: list[int], k: int | None, choices: int = 1, hold: bool = False) -> SequenceSpec:
    sampling = SamplingParams(max_tokens=2, temperature=0.0, prompt_logprobs=k)
    key = RequestKey(number.to_bytes(16), 1)
    return SequenceSpec(key, tuple(tokens), len(tokens), tuple(range(choices)), sampling, "", 1e9, hold)


class Engine:
    """A real scheduler and runner on one model."""

    def __init__(self, model: Any, max_step_tokens: int = 8_192) -> None:
        loaded = model.loaded
        geometry = kv_geometry(loaded.config, loaded.dtype, BLOCK_TOKENS)
        blocks, context = 64 * len(geometry.windows), loaded.max_context_tokens
        config = EngineConfig(
            blocks, BLOCK_TOKENS, 8, context, max_step_tokens=max_step_tokens, windows=geometry.windows
        )
        pool = KvPool(geometry, blocks, loaded.dtype, loaded.device)
        self.scheduler = Scheduler(config)
        self._stepper = Stepper(self.scheduler, ModelRunner(loaded, pool, config.max_slots))

    def run(self, *specs: SequenceSpec) -> list[SchedulerEvent]:
        for spec in specs:
            self.scheduler.submit(spec, 0.0)
        events: list[SchedulerEvent] = []
        while self._stepper.turn(0.0):
            events += self.scheduler.events()
        return events


def scores(events: list[SchedulerEvent], number: int) -> list[PromptLogprob]:
    """A prompt's log probabilities, which must come in order, whole, and before its first token."""
    scores: list[PromptLogprob] = []
    for event in events:
        if isinstance(event, PromptScored | Drawn) and event.key.request == number.to_bytes(16):
            if isinstance(event, Drawn):
                break
            assert event.first_index == len(scores) + 1
            scores += event.logprobs
    return scores


def assert_scores(scores: list[PromptLogprob], model: Any, tokens: list[int], k: int) -> None:
    expected = reference_logits(model.reference, tokens).log_softmax(-1)[:-1]
    wanted = torch.tensor(tokens[1:])
    assert len(scores) == len(tokens) - 1
    values = torch.tensor([score.logprob for score in scores])
    torch.testing.assert_close(values, expected.gather(1, wanted[:, None]).squeeze(1), rtol=0, atol=ATOL)
    best = expected.topk(k)
    for row, score in enumerate(scores):
        assert len(score.top) == k
        likelier = int((expected[row] > values[row] + ATOL).sum())
        as_likely = int((expected[row] >= values[row] - ATOL).sum())
        assert likelier < score.rank <= max(as_likely, likelier + 1)
        torch.testing.assert_close(torch.tensor([v for _, v in score.top]), best.values[row], rtol=0, atol=ATOL)
        assert all(value == score.logprob for token, value in score.top if token == tokens[row + 1]), "equal to the bit"


@pytest.mark.parametrize("family", FAMILIES)
def test_prompt_logprobs_are_those_of_transformers(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    assert_scores(scores(Engine(model).run(spec(1, model.tokens, 3)), 1), model, model.tokens, 3)


@pytest.mark.parametrize("max_step_tokens", [5, 16, 17])
def test_a_prompt_in_pieces_misses_no_token_at_their_borders(
    tiny: Callable[[str], Any], max_step_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny("llama-gqa")
    monkeypatch.setattr(prompt_scores, "LOGITS_BYTES", 4 * 3 * model.logits.shape[1])  # three rows at once
    assert_scores(scores(Engine(model, max_step_tokens).run(spec(1, model.tokens, 1)), 1), model, model.tokens, 1)


def test_a_cached_beginning_is_computed_again(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    engine = Engine(model)
    engine.run(spec(1, model.tokens, None))
    events = engine.run(spec(2, model.tokens, 2))
    assert_scores(scores(events, 2), model, model.tokens, 2)
    engine.run(spec(3, model.tokens, None))
    assert engine.scheduler.stats().blocks_cached > 0
    engine.scheduler.check()


def test_others_in_the_same_step_are_neither_scored_nor_changed(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-mha")
    alone = [event for event in Engine(model).run(spec(1, model.tokens, None)) if isinstance(event, Drawn)]
    other = model.tokens[7:30]
    events = Engine(model).run(spec(1, model.tokens, None), spec(2, other, 0, choices=3), spec(3, model.tokens[:1], 5))
    drawn = [event for event in events if isinstance(event, Drawn) and event.key.request == (1).to_bytes(16)]
    assert [event.ids for event in drawn] == [event.ids for event in alone]
    assert scores(events, 1) == scores(events, 3) == []
    assert_scores(scores(events, 2), model, other, 0)
    assert sum(isinstance(event, PromptScored) for event in events) == 1, "once for all three choices"


def test_what_was_generated_before_is_not_scored_again(tiny: Callable[[str], Any]) -> None:
    """A migration sends the prompt and the tokens that the client has: all scores were reported before."""
    model = tiny("llama-gqa")
    whole = spec(1, model.tokens, 1)
    moved = SequenceSpec(whole.key, whole.tokens, len(model.tokens) - 1, (0,), whole.sampling, "", 1e9)
    assert not any(isinstance(event, PromptScored) for event in Engine(model).run(moved))
