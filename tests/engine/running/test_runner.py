"""The runner carries out plans: drawn tokens, forks, hand-over, reuse of slots, order of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from baton_engine.scheduling.step_plan import BlockCopy, BlockUpdate, StepPlan
from baton_testing.engine.model_steps import GREEDY, RunnerSteps, blocks_of, chunk, opened, updates
from baton_testing.engine.models import FAMILIES, reference_logits

MARGIN = 1e-3


def assert_greedy(model: Any, prompt: list[int], ids: list[int]) -> None:
    """`ids` are what transformers would draw, wherever its two likeliest tokens are not within MARGIN of each
    other."""
    logits = reference_logits(model.reference, [*prompt, *ids[:-1]])[len(prompt) - 1 :]
    for drawn, row in zip(ids, logits, strict=True):
        best, second = torch.topk(row, 2).values.tolist()
        assert drawn == int(row.argmax()) or best - second <= MARGIN


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_generation_is_that_of_transformers(family: str, tiny: Callable[[str], Any]) -> None:
    model = tiny(family)
    assert_greedy(model, model.tokens, RunnerSteps(model.loaded).generate(model.tokens, 60))


@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_drawn_from_the_logits_of_transformers(family: str, tiny: Callable[[str], Any]) -> None:
    """Caps and divisors of logits do not change the likeliest token, but everything else that is drawn or reported."""
    model = tiny(family)
    steps = RunnerSteps(model.loaded)
    hot = replace(GREEDY, temperature=1.5, seed=7)
    steps.execute([opened(0, hot, prompt=model.tokens)], [chunk(0, model.tokens, sample=[0])])
    torch.testing.assert_close(steps.seen[-1][1], model.logits[-1:], rtol=0, atol=model.tolerance)


def test_choices_of_one_prompt_share_its_logits_and_then_go_their_own_way(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    steps = RunnerSteps(model.loaded, slots=4)
    hot = replace(GREEDY, temperature=1.5, seed=7)
    prompt = model.tokens[:37]
    opens = [opened(slot, hot, choice=slot, prompt=prompt) for slot in range(3)]
    first = steps.execute(opens, [chunk(0, prompt, sample=[0, 1, 2])])
    assert [entry.slot for entry in first.tokens] == [0, 1, 2]
    drawn = [entry.ids[0] for entry in first.tokens]
    assert len(set(drawn)) > 1
    # Whole blocks are shared, the last one is copied: 37 tokens are two blocks of 16 and five tokens.
    shared = blocks_of(0, 4, 8)
    forks = tuple(update for slot in (1, 2) for update in updates(slot, shared[:2]))
    copies = tuple(BlockCopy(shared[2], blocks_of(slot, 4, 8)[2]) for slot in (1, 2))
    plan = StepPlan(2, blocks=forks, copies=copies, decode=(0, 1, 2))
    second = steps.runner.execute(plan)
    expected = [reference_logits(model.reference, [*prompt, token])[-1] for token in drawn]
    torch.testing.assert_close(steps.seen[-1][1], torch.stack(expected), rtol=0, atol=1e-4)
    third = steps.execute(decode=[2, 0, 1])
    again = [[*prompt, drawn[slot], second.tokens[slot].ids[0]] for slot in (2, 0, 1)]
    expected = [reference_logits(model.reference, tokens)[-1] for tokens in again]
    torch.testing.assert_close(steps.seen[-1][1], torch.stack(expected), rtol=0, atol=1e-4)
    assert [entry.slot for entry in third.tokens] == [2, 0, 1]


def test_a_sequence_goes_on_from_kv_that_it_did_not_compute_itself(tiny: Callable[[str], Any]) -> None:
    """Hand-over and return from preemption: the slot opens with its context in blocks and its last token known."""
    model = tiny("qwen2")
    steps = RunnerSteps(model.loaded)
    ids = steps.generate(model.tokens, 20)
    outputs = ids[:6]
    resumed = opened(3, prompt=model.tokens, outputs=outputs, context=len(model.tokens) + 5, last=outputs[-1])
    plan = StepPlan(100, opens=(resumed,), blocks=updates(3, blocks_of(0, 4, 8)), decode=(3,))
    rest = [steps.runner.execute(plan).tokens[0].ids[0]]
    rest += [steps.execute(decode=[3]).tokens[0].ids[0] for _ in range(13)]
    assert outputs + rest == ids


def test_steps_may_be_launched_before_earlier_ones_are_collected(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-mha")
    steps = RunnerSteps(model.loaded)
    expected = steps.generate(model.tokens, 5, slot=1)
    runner = steps.runner
    assert not runner.is_done()
    runner.launch(steps.plan([opened(0, prompt=model.tokens)], [chunk(0, model.tokens, sample=[0])]))
    ids = []
    for _ in range(4):
        runner.launch(steps.plan(decode=[0]))
        assert runner.is_done()
        ids.append(runner.collect())
    with pytest.raises(RuntimeError, match="in flight"):
        runner.execute(steps.plan())
    ids.append(runner.collect())
    assert [result.tokens[0].ids[0] for result in ids] == expected
    assert [result.step for result in ids] == list(range(6, 11))
    with pytest.raises(RuntimeError, match="no step"):
        runner.collect()


def test_a_closed_slot_serves_the_next_sequence(tiny: Callable[[str], Any]) -> None:
    model = tiny("qwen3")
    steps = RunnerSteps(model.loaded)
    fresh = steps.generate(model.tokens[:9], 8, slot=1)
    penalised = replace(GREEDY, frequency_penalty=2.0, min_tokens=3, stop_token_ids=(5,), logprobs=1)
    steps.generate(model.tokens, 12, penalised, slot=0)
    steps.execute(closes=[0])
    assert steps.generate(model.tokens[:9], 8, slot=0) == fresh


def test_a_step_without_rows_draws_nothing(tiny: Callable[[str], Any]) -> None:
    steps = RunnerSteps(tiny("llama-mha").loaded)
    result = steps.execute()
    assert (result.step, result.tokens) == (1, ())
    assert result.duration_s >= 0


def test_only_chunks_that_end_a_prompt_draw(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-mha")
    steps = RunnerSteps(model.loaded)
    opens = [opened(slot, prompt=model.tokens) for slot in (0, 1)]
    first = steps.execute(opens, [chunk(0, model.tokens[:12]), chunk(1, model.tokens[:11])])
    assert first.tokens == ()
    second = steps.execute((), [chunk(0, model.tokens[12:20], 12), chunk(1, model.tokens[11:], 11, sample=[1])])
    assert [entry.slot for entry in second.tokens] == [1]
    assert second.duration_s > 0
    third = steps.execute((), [chunk(0, model.tokens[20:], 20, sample=[0])], decode=[1])
    assert [entry.slot for entry in third.tokens] == [1, 0]
    assert third.tokens[1].ids == second.tokens[0].ids


def test_a_sequence_draws_the_same_alone_and_among_others(tiny: Callable[[str], Any]) -> None:
    model = tiny("mistral-window")
    sampling = replace(GREEDY, temperature=0.8, top_p=0.9, seed=11)
    alone = RunnerSteps(model.loaded).generate(model.tokens, 30, sampling)
    steps = RunnerSteps(model.loaded)
    opens = [
        opened(0, sampling, prompt=model.tokens),
        opened(1, replace(sampling, seed=12, top_k=3), prompt=model.tokens[:7]),
        opened(2, prompt=model.tokens[3:]),
    ]
    chunks = [chunk(1, model.tokens[:7], sample=[1]), chunk(0, model.tokens, sample=[0])]
    results = [steps.execute(opens, [*chunks, chunk(2, model.tokens[3:], sample=[2])])]
    results += [steps.execute(decode=[2, 1, 0] if step % 3 else [0, 1]) for step in range(29)]
    assert [entry.ids[0] for result in results for entry in result.tokens if entry.slot == 0] == alone


def test_a_block_arrives_when_the_sequence_grows_into_it(tiny: Callable[[str], Any]) -> None:
    model = tiny("llama-gqa")
    steps = RunnerSteps(model.loaded, slots=2)
    expected = steps.generate(model.tokens[:16], 20, slot=1)
    first = StepPlan(
        1,
        opens=(opened(0, prompt=model.tokens[:16]),),
        blocks=(BlockUpdate(0, 0, 14),),
        prefill=(chunk(0, model.tokens[:16], sample=[0]),),
    )
    ids = [steps.runner.execute(first).tokens[0].ids[0]]
    for step in range(19):
        blocks = (BlockUpdate(0, 1 + step // 16, 12 - 2 * (step // 16)),) if step % 16 == 0 else ()
        ids.append(steps.runner.execute(StepPlan(2 + step, blocks=blocks, decode=(0,))).tokens[0].ids[0])
    assert ids == expected
