"""Triton sampling kernels against the references: odd vocabularies, ties, forbidden tokens, mixed rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton_kernels.sampling.gumbel import gumbel_noise_reference
from baton_kernels.sampling.logprobs import Logprobs, logprobs_reference
from baton_kernels.sampling.penalties import apply_penalties_reference
from baton_kernels.sampling.sampling import sample_reference
from baton_kernels.sampling.sampling_inputs import Draws, Penalties, Truncation
from baton_kernels.sampling.token_mask import forbid_tokens_reference, mask_words
from baton_kernels.sampling.truncated_draw import truncated_draw_reference
from baton_kernels.sampling.truncation import mask_top_k_top_p_min_p_reference

VOCABULARIES = [1, 63, 300, 1100]


def random_logits(rows: int, vocab: int, device: str) -> Tensor:
    return (torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * 3).to(device)


def option_tensors(options: list[tuple[float, int, float, float]], device: str) -> tuple[Tensor, Truncation]:
    """(temperature, the rest) of rows of temperature, top-k, top-p and min-p."""
    temperature, top_k, top_p, min_p = (torch.tensor(values).to(device) for values in zip(*options, strict=True))
    return temperature, Truncation(top_k.int(), top_p, min_p)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_noise_kernel_makes_the_same_noise(triton_device: str, vocab: int) -> None:
    from baton_kernels.sampling.gpu.sampling import gumbel_noise_triton

    seed = torch.tensor([0, 5, -7, 2**63 - 1, -(2**63)]).to(triton_device)
    choice = torch.tensor([0, 1, 2, 0, 3]).to(triton_device)
    index = torch.tensor([0, 1, 1000, 2, 0]).to(triton_device)
    got = gumbel_noise_triton(seed, choice, index, vocab)
    expected = gumbel_noise_reference(seed, choice, index, vocab)
    # The integers are equal; only the last bits of two logarithms may differ.
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_sample_kernel_draws_the_same_tokens(triton_device: str, vocab: int) -> None:
    from baton_kernels.sampling.gpu.sampling import sample_triton

    logits = random_logits(5, vocab, triton_device)
    logits[:, vocab // 2 :: 3] = float("-inf")
    logits[:, 0] = 0.0
    temperature = torch.tensor([0.0, 1.0, 0.5, 0.0, 2.0]).to(triton_device)
    keys = [torch.tensor(values).to(triton_device) for values in ([1, 2, 3, 4, -5], [0, 0, 1, 0, 2], [0, 9, 9, 1, 7])]
    draws = Draws(temperature, *keys)
    assert torch.equal(sample_triton(logits, draws), sample_reference(logits, draws))


@pytest.mark.filterwarnings("ignore:.*(invalid value|NaN):RuntimeWarning")  # numpy's, for NaN under the interpreter
def test_sample_kernel_takes_the_first_of_equal_maxima_and_stays_in_the_vocabulary(triton_device: str) -> None:
    from baton_kernels.sampling.gpu.sampling import sample_triton

    logits = torch.zeros(3, 1500, device=triton_device)
    logits[0, [7, 1200]] = 5.0
    logits[2] = float("nan")
    zeros = torch.zeros(3, dtype=torch.int64, device=triton_device)
    ids = sample_triton(logits, Draws(torch.zeros(3, device=triton_device), zeros, zeros, zeros))
    assert ids[:2].tolist() == [7, 0]
    assert 0 <= int(ids[2]) < 1500


@pytest.mark.parametrize("vocab", VOCABULARIES)
def test_penalties_kernel_equals_reference(triton_device: str, vocab: int) -> None:
    from baton_kernels.sampling.gpu.penalties import apply_penalties_triton

    generator = torch.Generator().manual_seed(1)
    logits = random_logits(3, vocab, triton_device)
    mask = (torch.rand(3, vocab, generator=generator) < 0.3).to(triton_device)
    counts = torch.randint(0, 3, (3, vocab), generator=generator, dtype=torch.int32).to(triton_device)
    asked = ([0.0, 0.5, -1.0], [0.0, -0.3, 0.2], [1.0, 1.2, 0.7])
    penalties = Penalties(*(torch.tensor(values).to(triton_device) for values in asked))
    got = apply_penalties_triton(logits, mask, counts, penalties)
    torch.testing.assert_close(got, apply_penalties_reference(logits, mask, counts, penalties), atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("with_ties", [False, True])
@pytest.mark.parametrize("vocab", [1, 200])
def test_truncation_kernel_keeps_the_same_tokens(triton_device: str, vocab: int, with_ties: bool) -> None:
    from baton_kernels.sampling.gpu.truncation import mask_top_k_top_p_min_p_triton

    options = [
        (1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.9, 0.0), (1.0, 0, 0.0001, 0.0), (1.0, 0, 1.0, 0.05),
        (0.8, 40, 0.6, 0.02), (2.0, 1, 0.5, 0.5), (1.0, 10_000, 0.99, 0.0), (0.0, 3, 0.5, 0.5),
    ]  # fmt: skip
    logits = random_logits(len(options), vocab, triton_device)
    logits[0, 1:] = float("-inf")
    if with_ties:
        logits = logits.round()
    args = (logits, *option_tensors(options, triton_device))
    assert torch.equal(mask_top_k_top_p_min_p_triton(*args), mask_top_k_top_p_min_p_reference(*args))


@pytest.mark.parametrize(("vocab", "with_ties"), [(1, False), (300, True), (1500, False)])
def test_truncated_draw_kernel_draws_the_same_tokens(triton_device: str, vocab: int, with_ties: bool) -> None:
    from baton_kernels.sampling.gpu.truncated_draw import truncated_draw_triton

    options = [
        (1.0, 0, 1.0, 0.0), (0.7, 5, 1.0, 0.0), (1.3, 0, 0.9, 0.0), (1.0, 0, 0.0001, 0.0), (1.0, 0, 1.0, 0.05),
        (0.9, 0, 1.0, 0.6), (1.0, 0, 1.0, 0.001), (1.0, 0, 0.8, 0.05),
        (0.8, 40, 0.6, 0.02), (1.0, 10_000, 0.99, 0.0), (0.0, 3, 0.5, 0.5), (1.5, 200, 0.7, 0.0), (1.0, 128, 0.3, 0.0),
    ]  # fmt: skip
    logits = random_logits(len(options), vocab, triton_device)
    logits[0, 1:] = float("-inf")
    logits[5, 1::3] = float("-inf")
    if with_ties:
        logits = logits.round()
    temperature, truncation = option_tensors(options, triton_device)
    generator = torch.Generator().manual_seed(2)
    keys = [torch.randint(-1000, 1000, (len(options),), generator=generator).to(triton_device) for _ in range(3)]
    args = (logits, truncation, Draws(temperature, *keys))
    assert torch.equal(truncated_draw_triton(*args), truncated_draw_reference(*args))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_are_the_same_over_several_parts(triton_device: str, dtype: torch.dtype) -> None:
    """Rejected winners, whose parts are looked through again; min-p and top-p that too many tiles reach."""
    from baton_kernels.sampling.gpu.truncated_draw import truncated_draw_triton

    options = [
        (50.0, 0, 1.0, 0.02),
        (1.0, 0, 1.0, 0.02),
        (2.0, 0, 0.5, 0.001),
        (3.0, 200, 0.6, 0.0),
        (50.0, 0, 0.5, 0.0),
    ]
    options += [(2.0, 0, top_p, 0.0) for top_p in (0.05, 0.3, 0.5, 0.7, 0.8, 0.9)] * 2
    logits = random_logits(len(options), 17_000, triton_device).to(dtype)  # 5 parts, 2125 tiles
    temperature, truncation = option_tensors(options, triton_device)
    keys = [(torch.arange(len(options)) * factor).to(triton_device) for factor in (7, 1, 3)]
    args = (logits, truncation, Draws(temperature, *keys))
    assert torch.equal(truncated_draw_triton(*args), truncated_draw_reference(*args))


@pytest.mark.parametrize("k", [0, 1, 5])
@pytest.mark.parametrize("vocab", [1, 63, 1100])
def test_logprobs_kernel_equals_reference(triton_device: str, vocab: int, k: int) -> None:
    from baton_kernels.sampling.gpu.logprobs import logprobs_triton

    logits = random_logits(3, vocab, triton_device)
    ids = torch.tensor([0, vocab - 1, vocab // 2]).to(triton_device)
    got, expected = Logprobs(*logprobs_triton(logits, ids, k)), logprobs_reference(logits, ids, k)
    torch.testing.assert_close(got.chosen, expected.chosen, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.top, expected.top, atol=1e-5, rtol=0)
    assert torch.equal(got.top_ids, expected.top_ids)


def test_equal_logits_are_listed_by_ascending_id(triton_device: str) -> None:
    from baton_kernels.sampling.gpu.logprobs import logprobs_triton

    logits = torch.zeros(1, 1100, device=triton_device)
    got = Logprobs(*logprobs_triton(logits, torch.tensor([3], device=triton_device), 4))
    assert got.top_ids.tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocab", [*VOCABULARIES, 4096, 4099])
def test_mask_kernel_forbids_what_the_reference_forbids(triton_device: str, vocab: int, dtype: torch.dtype) -> None:
    from baton_kernels.sampling.gpu.token_mask import forbid_tokens_triton

    generator = torch.Generator().manual_seed(2)
    logits = random_logits(4, vocab, triton_device).to(dtype)
    allowed = torch.randint(-(2**31), 2**31, (3, mask_words(vocab) + 1), generator=generator, dtype=torch.int32)
    allowed[2] = 0
    rows = torch.tensor([3, 0, 2]).to(triton_device)
    got, expected = logits.clone(), logits.clone()
    forbid_tokens_triton(got, rows, allowed.to(triton_device))
    forbid_tokens_reference(expected, rows, allowed.to(triton_device))
    assert torch.equal(got, expected)
    assert torch.equal(got[1], logits[1]), "a row without a mask"
