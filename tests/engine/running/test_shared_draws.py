"""Draws of ranks that have a part of the vocabulary each: the same tokens as from all logits at once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baton_engine.grammars.token_masks import TokenMasks
from baton_engine.model.layers.summed import VocabularyShare
from baton_engine.running.sampler import Draw, Sampler
from baton_kernels.sampling.gumbel import gumbel_noise_reference, noise_keys, noise_of_keys
from baton_testing.engine.model_steps import opened
from baton_testing.engine.threaded_ranks import ThreadCollective, run_ranks
from baton_wire.messages.values import SamplingParams

CPU = torch.device("cpu")
VOCABULARY = 1_003
GREEDY = SamplingParams(max_tokens=9, temperature=0.0)
NOISY = SamplingParams(max_tokens=9, temperature=0.7, seed=5)


def share_of(collective: ThreadCollective, vocabulary: int = VOCABULARY) -> VocabularyShare:
    share = collective.share
    width = -(-vocabulary // share.ranks)
    return VocabularyShare(collective, min(share.rank, (vocabulary - 1) // width) * width, width, vocabulary)


def draw(
    logits: Tensor, options: Sequence[SamplingParams], share: VocabularyShare | None, masks: TokenMasks | None = None
) -> list[Draw]:
    """Three draws of each row; all rows differ in their noise."""
    sampler = Sampler(logits.shape[1], len(options), CPU, share)
    for slot, sampling in enumerate(options):
        sampler.open(opened(slot, sampling, choice=slot, prompt=[1, 2, 3]))
    own = logits if share is None else logits[:, share.first : share.first + share.width]
    return [sampler.draw(tuple(range(len(options))), own.clone(), masks) for _ in range(3)]


def ids(draws: Sequence[Draw]) -> list[list[int]]:
    return [drawn.ids.tolist() for drawn in draws]


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize(
    ("options", "calls", "elements"),
    [
        ([GREEDY] * 5, 3, 3 * 5),
        ([NOISY] * 5, 3, 3 * 5),
        ([GREEDY, NOISY, GREEDY, NOISY, NOISY], 3, 3 * 5),
        ([GREEDY, SamplingParams(max_tokens=9, temperature=1.0, top_p=0.9)], 3, None),
        ([GREEDY, SamplingParams(max_tokens=9, temperature=1.0, top_k=7, seed=1)], 3, None),
        ([NOISY, SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=1.5)], 3, None),
        ([NOISY, SamplingParams(max_tokens=9, temperature=0.0, logit_bias=((17, 50.0), (1_002, 60.0)))], 3, None),
        ([NOISY, SamplingParams(max_tokens=9, temperature=0.0, logprobs=3)], 3, None),
        ([NOISY, SamplingParams(max_tokens=9, min_tokens=2, stop_token_ids=(4, 900), temperature=0.0)], 3, None),
    ],
    ids=["greedy", "noise", "both", "top-p", "top-k", "penalties", "bias", "logprobs", "min-tokens"],
)
def test_every_rank_draws_what_one_draws(
    ranks: int, options: list[SamplingParams], calls: int, elements: int | None
) -> None:
    logits = torch.randn(len(options), VOCABULARY, generator=torch.Generator().manual_seed(3)) * 3
    expected = draw(logits, options, None)

    def own(collective: ThreadCollective) -> tuple[list[Draw], int, int]:
        return draw(logits, options, share_of(collective)), collective.calls, collective.elements

    for draws, called, brought in run_ranks(ranks, own):
        assert ids(draws) == ids(expected)
        assert called == calls
        assert elements is None or brought == elements
        for drawn, whole in zip(draws, expected, strict=True):
            assert (drawn.logprobs is None) == (whole.logprobs is None)
            if drawn.logprobs is not None and whole.logprobs is not None:
                assert torch.equal(drawn.logprobs.top_ids, whole.logprobs.top_ids)
                assert torch.equal(drawn.logprobs.top, whole.logprobs.top)


def test_masks_of_grammars_are_those_of_the_whole_vocabulary() -> None:
    logits = torch.randn(2, VOCABULARY, generator=torch.Generator().manual_seed(3))
    words = torch.zeros(1, -(-VOCABULARY // 32), dtype=torch.int64).numpy().astype("uint32")
    words[0, 30] = 1 << 5
    masks = TokenMasks.of(torch.tensor([1]).numpy(), words)
    expected = ids(draw(logits, [GREEDY, GREEDY], None, masks))
    assert [row[1] for row in expected] == [965] * 3
    assert run_ranks(4, lambda one: ids(draw(logits, [GREEDY, GREEDY], share_of(one), masks))) == [expected] * 4


@pytest.mark.parametrize("vocabulary", [1, 2, 5, 9])
def test_ranks_without_a_part_of_their_own_change_nothing(vocabulary: int) -> None:
    logits = torch.randn(4, vocabulary, generator=torch.Generator().manual_seed(1))
    options = [GREEDY, NOISY, NOISY, GREEDY]
    expected = ids(draw(logits, options, None))
    assert run_ranks(8, lambda one: ids(draw(logits, options, share_of(one, vocabulary)))) == [expected] * 8


def test_the_first_of_equal_logits_wins_over_all_ranks() -> None:
    logits = torch.zeros(5, 12)
    logits[0, [2, 5, 11]] = 3.0
    logits[1, :] = -1.0
    logits[2, 7], logits[2, 3] = 0.0, -0.0
    logits[3, :] = float("-inf")
    logits[4, :] = float("-inf")
    logits[4, 10] = -1e30
    expected = ids(draw(logits, [GREEDY] * 5, None))
    assert expected[0] == [2, 0, 0, 0, 10]
    assert run_ranks(4, lambda one: ids(draw(logits, [GREEDY] * 5, share_of(one, 12)))) == [expected] * 4


@given(seed=st.integers(0, 2**31), ranks=st.sampled_from([2, 3, 4]), scale=st.sampled_from([1e-3, 1.0, 100.0]))
@settings(max_examples=15, deadline=None)
def test_any_logits_give_the_tokens_of_one_rank(seed: int, ranks: int, scale: float) -> None:
    """Logits of few digits, so that many are equal."""
    logits = (torch.randn(6, 50, generator=torch.Generator().manual_seed(seed)) * 4).round() * scale
    options = [GREEDY, NOISY] * 3
    expected = ids(draw(logits, options, None))
    assert run_ranks(ranks, lambda one: ids(draw(logits, options, share_of(one, 50)))) == [expected] * ranks


def test_noise_of_a_part_has_the_bits_of_the_whole() -> None:
    seed, choice, index = (torch.arange(3) + at for at in (7, 0, 100))
    whole = gumbel_noise_reference(seed, choice, index, 1_003)
    keys = noise_keys(seed, choice, index)
    for first, count in ((0, 1_003), (1, 17), (500, 503), (1_002, 1)):
        assert torch.equal(noise_of_keys(*keys, count, first), whole[:, first : first + count])
