"""Every sampling option takes effect, and draws depend on (seed, choice, token index) alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.running.sampler import Draw, Sampler
from baton_testing.engine.model_steps import opened
from baton_wire.messages.values import Grammar, SamplingParams

VOCAB = 64
CPU = torch.device("cpu")


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 1_000, "temperature": 1.0, "seed": 3, **fields})


def random_logits(rows: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def draws(sampling: SamplingParams, count: int, logits: torch.Tensor, choice: int = 0, **state: Any) -> list[int]:
    """Ids of one slot that reads the same logits every time."""
    sampler = Sampler(VOCAB, 4, CPU)
    sampler.open(opened(2, sampling, choice, **state))
    return [int(sampler.draw((2,), logits).ids[0]) for _ in range(count)]


def test_temperature_zero_takes_the_likeliest_token() -> None:
    logits = random_logits()
    assert draws(params(temperature=0.0), 5, logits) == [int(logits.argmax())] * 5


@pytest.mark.parametrize("temperature", [1e-45, 1e-38, 1e-20, 9.9e-6])
@pytest.mark.parametrize("others", [{}, {"top_p": 0.5}, {"top_k": 3, "min_p": 0.1}])
def test_a_temperature_of_nearly_nothing_takes_the_likeliest_token(temperature: float, others: dict[str, Any]) -> None:
    logits = random_logits()
    assert draws(params(temperature=temperature, **others), 5, logits) == [int(logits.argmax())] * 5


def test_frequencies_follow_the_softmax() -> None:
    logits = random_logits()
    ids = torch.tensor(draws(params(temperature=0.7), 6_000, logits))
    frequencies = torch.bincount(ids, minlength=VOCAB) / len(ids)
    expected = (logits[0] / 0.7).softmax(-1)
    # Three standard deviations of the likeliest token's frequency are 0.02.
    assert (frequencies - expected).abs().max() < 0.025


def test_a_seed_repeats_and_another_differs() -> None:
    logits = random_logits()
    assert draws(params(seed=5), 50, logits) == draws(params(seed=5), 50, logits)
    assert draws(params(seed=5), 50, logits) != draws(params(seed=6), 50, logits)


def test_choices_of_one_request_differ() -> None:
    logits = random_logits()
    assert draws(params(), 50, logits, choice=0) != draws(params(), 50, logits, choice=1)


def test_a_sequence_that_moves_goes_on_with_the_same_draws() -> None:
    logits = random_logits()
    whole = draws(params(frequency_penalty=0.5), 30, logits, prompt=[4, 5])
    moved = draws(params(frequency_penalty=0.5), 18, logits, prompt=[4, 5], outputs=whole[:12])
    assert moved == whole[12:]


def test_a_draw_is_independent_of_its_place_in_the_batch() -> None:
    logits = random_logits(3)
    alone = draws(params(), 20, logits[1:2])
    sampler = Sampler(VOCAB, 4, CPU)
    sampler.open(opened(2, params()))
    for slot, sampling in ((0, params(temperature=0.0)), (3, params(top_k=2, logprobs=2, presence_penalty=1.0))):
        sampler.open(opened(slot, sampling))
    assert [int(sampler.draw((0, 2, 3), logits).ids[1]) for _ in range(20)] == alone


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({"top_k": 1}, 1),
        ({"top_k": 3}, 3),
        ({"top_p": 1e-6}, 1),
        ({"min_p": 1.0}, 1),
        ({"top_k": 5, "top_p": 1e-6}, 1),
    ],
)
def test_truncation_leaves_the_likeliest_tokens(options: dict[str, Any], allowed: int) -> None:
    logits = random_logits()
    best = set(torch.topk(logits[0], allowed).indices.tolist())
    assert set(draws(params(temperature=5.0, **options), 300, logits)) == best


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, [3, 9, 11]] = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    assert set(draws(params(top_p=0.75), 300, logits)) == {3, 9}
    assert set(draws(params(top_p=0.85), 300, logits)) == {3, 9, 11}


def test_min_p_is_a_share_of_the_likeliest_token() -> None:
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, [3, 9, 11]] = torch.log(torch.tensor([0.5, 0.3, 0.2]))
    assert set(draws(params(min_p=0.55), 300, logits)) == {3, 9}


def test_bias_moves_a_token_and_minus_100_forbids_it() -> None:
    logits = random_logits()
    best, second = torch.topk(logits[0], 2).indices.tolist()
    assert draws(params(temperature=0.0, logit_bias=((best, -100.0),)), 3, logits) == [second] * 3
    assert set(draws(params(logit_bias=((17, 100.0),)), 50, logits)) == {17}


def test_bias_on_an_id_outside_the_vocabulary_has_no_effect() -> None:
    logits = random_logits()
    plain = draws(params(), 20, logits)
    assert draws(params(logit_bias=((VOCAB + 5, 100.0),)), 20, logits) == plain


def test_presence_penalty_counts_a_generated_token_once_and_ignores_the_prompt() -> None:
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, [3, 9]] = torch.tensor([2.0, 1.0])
    # 3 wins, is then at 0.5 for good, and 9 wins until it is at -0.5 itself; then 3 again.
    penalised = params(temperature=0.0, presence_penalty=1.5)
    assert draws(penalised, 4, logits, prompt=[3, 9]) == [3, 9, 3, 3]


def test_frequency_penalty_grows_with_every_repetition() -> None:
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, [3, 9]] = torch.tensor([2.0, 1.0])
    assert draws(params(temperature=0.0, frequency_penalty=0.75), 5, logits) == [3, 3, 9, 3, 9]


def test_repetition_penalty_counts_prompt_and_output() -> None:
    logits = torch.full((1, VOCAB), -30.0)
    logits[0, [3, 9, 11]] = torch.tensor([3.0, 2.0, 1.6])
    penalised = params(temperature=0.0, repetition_penalty=1.6)
    assert draws(penalised, 3, logits, prompt=[3]) == [9, 3, 3]
    assert draws(penalised, 2, logits, prompt=[]) == [3, 9]
    assert draws(penalised, 1, logits, prompt=[3], outputs=[9]) == [3]


def test_penalties_of_one_slot_leave_the_others_alone() -> None:
    logits = random_logits(2)
    plain = draws(params(), 20, logits[:1])
    sampler = Sampler(VOCAB, 4, CPU)
    sampler.open(opened(2, params()))
    sampler.open(opened(1, params(repetition_penalty=1.9, frequency_penalty=2.0), prompt=list(range(30))))
    assert [int(sampler.draw((2, 1), logits).ids[0]) for _ in range(20)] == plain


def test_stop_ids_are_not_drawn_before_min_tokens() -> None:
    logits = random_logits()
    best, second, third = torch.topk(logits[0], 3).indices.tolist()
    sampling = params(temperature=0.0, min_tokens=3, stop_token_ids=(best, second, VOCAB + 1))
    assert draws(sampling, 5, logits) == [third, third, third, best, best]
    assert draws(sampling, 2, logits, outputs=[9, 9]) == [third, best]


def masks(*rows: tuple[int, Sequence[int]]) -> TokenMasks:
    """Masks from pairs (row, allowed ids)."""
    bits = np.zeros((len(rows), VOCAB), dtype=np.uint8)
    for place, (_, ids) in enumerate(rows):
        bits[place, list(ids)] = 1
    return TokenMasks.of(
        np.array([row for row, _ in rows]), np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
    )


def test_masks_come_after_bias_and_leave_other_rows_and_logprobs_alone() -> None:
    logits = random_logits(2)
    best, second, third = torch.topk(logits[0], 3).indices.tolist()
    sampler = Sampler(VOCAB, 4, CPU)
    sampler.open(opened(1, params(temperature=0.0, logprobs=1, logit_bias=((third, 50.0), (best, 90.0)))))
    sampler.open(opened(3, params(temperature=0.0)))
    expected = logits.log_softmax(-1)
    draw = sampler.draw((1, 3), logits.clone(), masks((0, [second, third])))
    assert draw.ids.tolist() == [third, int(logits[1].argmax())]
    assert draw.logprobs is not None
    assert draw.logprobs.top_ids.tolist() == [[best]]
    torch.testing.assert_close(draw.logprobs.chosen, expected[0, third][None])
    # Without bias the raw logits are what is masked: log probabilities still want them as they were.
    sampler.open(opened(1, params(temperature=0.0, logprobs=1)))
    draw = sampler.draw((1, 3), logits.clone(), masks((0, [second])))
    assert draw.ids.tolist() == [second, int(logits[1].argmax())]
    assert draw.logprobs is not None
    torch.testing.assert_close(draw.logprobs.top[0], expected[0, [best]])


@pytest.mark.parametrize("others", [{}, {"top_p": 0.5}, {"top_k": 3, "min_p": 0.1}, {"presence_penalty": 2.0}])
def test_only_allowed_tokens_are_drawn_whatever_else_is_asked(others: dict[str, Any]) -> None:
    logits = random_logits(2)
    allowed = torch.topk(logits[0], 10, largest=False).indices.tolist()
    sampler = Sampler(VOCAB, 4, CPU)
    for slot in range(2):
        sampler.open(opened(slot, params(temperature=1.3, **others)))
    for ids in (allowed, allowed[:1]):
        drawn = [sampler.draw((0, 1), logits.clone(), masks((0, ids))).ids.tolist()[0] for _ in range(50)]
        assert set(drawn) <= set(ids)
        assert len(set(drawn)) > 1 or len(ids) == 1


def test_with_a_grammar_its_masks_decide_about_stop_ids() -> None:
    logits = random_logits()
    best = int(logits.argmax())
    sampling = params(temperature=0.0, min_tokens=3, stop_token_ids=(best,), grammar=Grammar("{}"))
    assert draws(sampling, 2, logits) == [best, best]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(3)
    sampler = Sampler(VOCAB, 4, CPU)
    options = {"temperature": 0.3, "presence_penalty": 1.0, "logit_bias": ((7, 9.0),), "top_k": 4}
    sampler.open(opened(0, params(logprobs=5, **options), prompt=[1, 2]))
    sampler.open(opened(1, params()))
    sampler.open(opened(2, params(logprobs=0)))
    draw: Draw = sampler.draw((0, 1, 2), logits)
    expected = logits.log_softmax(-1)
    assert draw.logprobs is not None
    assert (draw.logprob_rows, draw.logprob_counts) == ((0, 2), (5, 0))
    ids = draw.ids[[0, 2]]
    torch.testing.assert_close(draw.logprobs.chosen, expected[[0, 2], ids])
    torch.testing.assert_close(draw.logprobs.top[0], torch.topk(expected[0], 5).values)
    assert draw.logprobs.top_ids[0].tolist() == torch.topk(expected[0], 5).indices.tolist()


def test_the_highest_seed_and_a_late_index_draw_too() -> None:
    logits = random_logits()
    late = draws(params(seed=(1 << 63) - 1), 40, logits, outputs=[1] * 70_000)
    assert len(set(late)) > 3
