"""A prompt that is computed before its draw may be made: the draw comes later, and is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from baton_engine.model.loading import LoadedModel, load_model
from baton_engine.scheduling.step_plan import PrefillChunk, StepResult
from baton_testing.engine.model_steps import GREEDY, RunnerSteps, chunk, opened

DEVICES = [
    "cpu",
    pytest.param(
        "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]
    ),
]
HOT = replace(GREEDY, temperature=1.5, seed=7)


@pytest.fixture(params=DEVICES)
def on_device(request: pytest.FixtureRequest) -> Callable[[Any], LoadedModel]:
    def loaded(model: Any) -> LoadedModel:
        if request.param == "cpu":
            return model.loaded  # type: ignore[no-any-return]
        return load_model(model.directory, torch.float32, torch.device("cuda"))

    return loaded


def keeping(slot: int, tokens: Sequence[int], start: int = 0) -> PrefillChunk:
    return PrefillChunk(slot, start, tuple(tokens), keeps=True)


def late(slot: int, start: int, *sample: int) -> PrefillChunk:
    return PrefillChunk(slot, start, (), sample or (slot,))


def drawn(result: StepResult) -> dict[int, int]:
    return {entry.slot: entry.ids[0] for entry in result.tokens}


@pytest.mark.parametrize("family", ["llama-gqa", "mistral-window"])
def test_a_late_draw_is_that_of_an_undisturbed_prompt(
    tiny: Callable[[str], Any], on_device: Callable[[Any], LoadedModel], family: str
) -> None:
    """Alone, next to rows that decode, and after a chunk before the last."""
    model = tiny(family)
    loaded, prompt = on_device(model), model.tokens[:37]
    expected = RunnerSteps(loaded).generate(prompt, 4, HOT, slot=1)
    other = RunnerSteps(loaded).generate(model.tokens[:20], 4)
    steps = RunnerSteps(loaded)
    draws = [drawn(steps.execute([opened(0, prompt=model.tokens[:20])], [chunk(0, model.tokens[:20], sample=[0])]))]
    opens = [opened(1, HOT, prompt=prompt)]
    draws.append(drawn(steps.execute(opens, [chunk(1, prompt[:16])], decode=[0])))
    draws.append(drawn(steps.execute((), [keeping(1, prompt[16:], 16)])))
    assert draws[-1] == {}
    draws.append(drawn(steps.execute((), [late(1, 37)], decode=[0])))
    draws += [drawn(steps.execute(decode=[1, 0])) for _ in range(3)]
    assert [draw[1] for draw in draws if 1 in draw] == expected
    assert [draw[0] for draw in draws if 0 in draw][:4] == other


def test_choices_draw_late_from_one_row_while_others_draw_at_once(
    tiny: Callable[[str], Any], on_device: Callable[[Any], LoadedModel]
) -> None:
    """Two choices and a prompt share a step whose logits are for three rows; one row is kept besides the others."""
    model = tiny("llama-gqa")
    loaded, prompt, other = on_device(model), model.tokens[:37], model.tokens[:21]
    whole = RunnerSteps(loaded)
    opens = [opened(slot, HOT, choice=slot, prompt=prompt) for slot in (0, 1)]
    expected = drawn(whole.execute(opens, [chunk(0, prompt, sample=[0, 1])]))
    expected |= drawn(whole.execute([opened(2, prompt=other)], [chunk(2, other, sample=[2])]))
    expected |= drawn(whole.execute([opened(3, prompt=prompt)], [chunk(3, prompt, sample=[3])]))
    steps = RunnerSteps(loaded)
    first = [keeping(0, prompt), chunk(2, other, sample=[2])]
    tokens = drawn(steps.execute([*opens, opened(2, prompt=other)], first))
    assert tokens.keys() == {2}
    tokens |= drawn(steps.execute([opened(3, prompt=prompt)], [late(0, 37, 0, 1), chunk(3, prompt, sample=[3])]))
    assert tokens == expected


def test_scores_of_a_prompt_keep_their_place_beside_a_late_draw(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    prompt = model.tokens[:20]
    scored = PrefillChunk(1, 0, tuple(prompt), (1,), tuple(prompt[1:]), 2)
    expected = RunnerSteps(model.loaded).execute([opened(1, prompt=prompt)], [scored]).scored[0].logprobs
    steps = RunnerSteps(model.loaded)
    steps.execute([opened(0, prompt=prompt)], [keeping(0, prompt)])
    result = steps.execute([opened(1, prompt=prompt)], [late(0, 20), scored])
    assert [(scores.chunk, scores.logprobs) for scores in result.scored] == [(1, expected)]
    assert drawn(result)[0] == drawn(result)[1]


def test_what_was_kept_is_gone_with_its_slot(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    steps = RunnerSteps(model.loaded)
    steps.execute([opened(0, prompt=model.tokens[:9])], [keeping(0, model.tokens[:9])])
    assert steps.runner._prompt_logits.keys() == {0}
    steps.execute(closes=[0])
    assert not steps.runner._prompt_logits
