"""Sampling pieces on the CPU: references against plain Python and Hugging Face, fast paths against references."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from baton_kernels.sampling import token_mask
from baton_kernels.sampling.gumbel import gumbel_noise
from baton_kernels.sampling.integer_hash import mix32, signed, splitmix64
from baton_kernels.sampling.logprobs import logprobs, logprobs_reference
from baton_kernels.sampling.penalties import apply_bias, apply_penalties, apply_penalties_reference
from baton_kernels.sampling.sampling import greedy, sample, sample_reference
from baton_kernels.sampling.sampling_inputs import Draws, Penalties, Truncation
from baton_kernels.sampling.token_mask import forbid_tokens, forbid_tokens_reference, forbidding, looking, mask_words
from baton_kernels.sampling.truncation import mask_top_k_top_p_min_p, mask_top_k_top_p_min_p_reference

EULER = 0.5772156649
MASK = (1 << 64) - 1


def splitmix64_by_hand(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def mix32_by_hand(x: int, key: int) -> int:
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    x ^= key
    x = ((x ^ (x >> 15)) * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def random_logits(rows: int, vocab: int, spread: float = 3.0, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * spread


def kept_by_hand(logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float) -> set[int]:
    scaled = [x / temperature for x in logits]
    survivors = [i for i, x in enumerate(scaled) if top_k == 0 or sum(y > x for y in scaled) < top_k]
    peak = max(scaled)
    total = math.fsum(math.exp(scaled[i] - peak) for i in survivors)
    nucleus = set()
    for i in survivors:
        above = math.fsum(math.exp(scaled[j] - peak) for j in survivors if scaled[j] > scaled[i]) / total
        if (above < top_p or top_p >= 1) and math.exp(scaled[i] - peak) >= min_p:
            nucleus.add(i)
    return nucleus | {i for i, x in enumerate(scaled) if x == peak}


OPTIONS = [
    (1.0, 0, 1.0, 0.0),
    (0.7, 5, 1.0, 0.0),
    (1.3, 0, 0.9, 0.0),
    (1.0, 0, 0.0001, 0.0),
    (1.0, 0, 1.0, 0.05),
    (0.8, 40, 0.6, 0.02),
    (2.0, 1, 0.5, 0.5),
    (1.0, 10_000, 0.999, 0.0),
    (1.0, 0, 1.0, 1.0),
]


def option_tensors(options: list[tuple[float, int, float, float]]) -> tuple[Tensor, Truncation]:
    temperature, top_k, top_p, min_p = zip(*options, strict=True)
    truncation = Truncation(torch.tensor(top_k, dtype=torch.int32), torch.tensor(top_p), torch.tensor(min_p))
    return torch.tensor(temperature), truncation


@pytest.mark.parametrize("with_ties", [False, True])
@pytest.mark.parametrize("vocab", [1, 17, 63, 200])
def test_truncation_keeps_what_the_definition_keeps(vocab: int, with_ties: bool) -> None:
    logits = random_logits(len(OPTIONS), vocab)
    if with_ties:
        logits = logits.round()
    expected = [kept_by_hand(row, *option) for row, option in zip(logits.tolist(), OPTIONS, strict=True)]
    for mask in (mask_top_k_top_p_min_p_reference, mask_top_k_top_p_min_p):
        got = mask(logits, *option_tensors(OPTIONS))
        assert [set(row.isfinite().nonzero()[:, 0].tolist()) for row in got] == expected
        assert torch.equal(got[got.isfinite()], logits[got.isfinite()])


@pytest.mark.parametrize("option", OPTIONS[1:], ids=str)
def test_truncation_is_that_of_hugging_face(option: tuple[float, int, float, float]) -> None:
    temperature, top_k, top_p, min_p = option
    logits = random_logits(1, 300)
    scores, ids = logits / temperature, torch.zeros(1, 1, dtype=torch.int64)
    if top_k:
        scores = TopKLogitsWarper(top_k)(ids, scores)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(ids, scores)
    if min_p:
        scores = MinPLogitsWarper(min_p)(ids, scores)
    got = mask_top_k_top_p_min_p(logits, *option_tensors([option]))
    assert torch.equal(got.isfinite(), scores.isfinite())


def test_a_nucleus_of_thousands_agrees_with_the_full_sort_up_to_its_border() -> None:
    logits = random_logits(4, 5000, spread=1.0)
    options = option_tensors([(1.0, 0, 0.3, 0.0), (1.0, 0, 0.95, 0.0), (1.0, 3000, 0.99, 0.0), (1.0, 100, 0.9, 0.0)])
    got = mask_top_k_top_p_min_p(logits, *options).isfinite()
    expected = mask_top_k_top_p_min_p_reference(logits, *options).isfinite()
    assert ((got != expected).sum(-1) <= 1).all()  # a float32 exp may move the border by one token of 1e-4
    assert (got.sum(-1) > torch.tensor([64, 1024, 1024, 30])).all()


def test_rows_with_everything_off_and_greedy_rows_come_back_as_they_are() -> None:
    logits = random_logits(3, 50)
    values = [(1.0, 0, 1.0, 0.0), (0.0, 3, 0.5, 0.1), (1.0, 3, 1.0, 0.0)]
    options = option_tensors(values)
    for mask in (mask_top_k_top_p_min_p_reference, mask_top_k_top_p_min_p):
        got = mask(logits, *options)
        assert torch.equal(got[:2], logits[:2])
        assert got[2].isfinite().sum() == 3
    idle = logits[:2]
    assert mask_top_k_top_p_min_p(idle, *option_tensors(values[:2])) is idle


def test_forbidden_tokens_are_never_let_in_by_top_k() -> None:
    logits = random_logits(1, 20)
    logits[0, 3:] = float("-inf")
    got = mask_top_k_top_p_min_p(logits, *option_tensors([(1.0, 10, 0.95, 0.0)]))
    assert set(got[0].isfinite().nonzero()[:, 0].tolist()) <= {0, 1, 2}


def test_repetition_penalty_is_that_of_hugging_face() -> None:
    logits = random_logits(1, 40)
    prompt, output = [3, 5, 5, 9], [9, 11]
    mask = torch.zeros(1, 40, dtype=torch.bool).index_fill_(1, torch.tensor(prompt), True)
    counts = torch.bincount(torch.tensor(output), minlength=40).int()[None]
    expected = RepetitionPenaltyLogitsProcessor(1.3)(torch.tensor([prompt + output]), logits.clone())
    got = apply_penalties(logits, mask, counts, Penalties(torch.zeros(1), torch.zeros(1), torch.tensor([1.3])))
    torch.testing.assert_close(got, expected)


def test_presence_and_frequency_count_generated_tokens_only() -> None:
    logits = torch.zeros(1, 4)
    mask = torch.tensor([[True, False, False, False]])
    counts = torch.tensor([[0, 1, 3, 0]], dtype=torch.int32)
    got = apply_penalties(logits, mask, counts, Penalties(torch.tensor([0.5]), torch.tensor([0.25]), torch.ones(1)))
    torch.testing.assert_close(got, torch.tensor([[0.0, -0.75, -1.25, 0.0]]))


def test_penalties_touch_only_rows_that_ask_and_equal_the_reference() -> None:
    logits = random_logits(3, 63)
    random = torch.Generator().manual_seed(1)
    mask = torch.rand(3, 63, generator=random) < 0.3
    counts = torch.randint(0, 3, (3, 63), generator=random, dtype=torch.int32)
    asked = [0.0, 0.5, 0.0], [0.0, -0.3, 0.0], [1.0, 1.2, 1.0]
    penalties, neutral = Penalties(*map(torch.tensor, asked)), Penalties(torch.zeros(3), torch.zeros(3), torch.ones(3))
    before = logits.clone()
    got = apply_penalties(logits, mask, counts, penalties)
    assert torch.equal(logits, before)
    assert torch.equal(got[[0, 2]], logits[[0, 2]])
    assert torch.equal(got, apply_penalties_reference(logits, mask, counts, penalties))
    assert torch.equal(apply_penalties(logits, mask, counts, neutral), logits)


def test_bias_adds_up_and_forbids() -> None:
    logits = torch.zeros(2, 3)
    rows, ids = torch.tensor([0, 0, 1]), torch.tensor([1, 1, 2])
    got = apply_bias(logits, rows, ids, torch.tensor([1.5, 2.0, float("-inf")]))
    assert got.tolist() == [[0.0, 3.5, 0.0], [0.0, 0.0, float("-inf")]]
    assert torch.equal(logits, torch.zeros(2, 3))


def test_integer_hashes_wrap_like_unsigned_integers() -> None:
    words = [0, 1, 0x7FFFFFFF, 0x80000000, 0xDEADBEEF, 0xFFFFFFFF]
    for key in (0, 0x12345678, 0xFEDCBA98):
        got = mix32(torch.tensor([signed(w, 32) for w in words], dtype=torch.int32), signed(key, 32))
        assert [value & 0xFFFFFFFF for value in got.tolist()] == [mix32_by_hand(w, key) for w in words]
    # First output of the reference splitmix64 generator with seed 1234567.
    assert splitmix64(torch.tensor([1234567])).item() == splitmix64_by_hand(1234567) == 6457827717110365317


def test_noise_has_the_moments_and_tails_of_a_gumbel() -> None:
    n, vocab = 8, 50_000
    zeros = torch.zeros(n, dtype=torch.int64)
    noise = gumbel_noise(torch.arange(n), zeros, zeros, vocab).double()
    assert noise.isfinite().all()
    count = n * vocab
    assert abs(noise.mean().item() - EULER) < 4 * math.sqrt(math.pi**2 / 6 / count)
    assert abs(noise.var().item() - math.pi**2 / 6) < 4 * math.sqrt(4.4 * (math.pi**2 / 6) ** 2 / count)
    for x in (-1.5, 0.0, 1.0, 3.0, 6.0, 9.0):
        expected = math.exp(-math.exp(-x))
        share = (noise <= x).double().mean().item()
        assert abs(share - expected) < 4 * math.sqrt(expected * (1 - expected) / count) + 1e-9


@pytest.mark.parametrize("changed", ["seed", "choice", "index"])
def test_noise_of_neighbouring_keys_is_uncorrelated(changed: str) -> None:
    vocab, n = 20_000, 6
    base = {"seed": torch.full((n,), 42), "choice": torch.zeros(n, dtype=torch.int64), "index": torch.full((n,), 7)}
    base[changed] = base[changed] + torch.arange(n)
    noise = gumbel_noise(base["seed"], base["choice"], base["index"], vocab)
    uniform = torch.exp(-torch.exp(-noise.double()))  # bounded, so that the correlation's spread is known
    limit = 4.5 / math.sqrt(vocab)
    for shift in (0, 1, 16):
        correlation = torch.corrcoef(torch.cat((uniform, uniform.roll(shift, -1))))[:n, n:]
        off = correlation if shift else correlation - torch.eye(n, dtype=torch.float64)
        assert off.abs().max() < limit


def test_noise_is_a_function_of_its_key_alone() -> None:
    seed = torch.tensor([5, -(2**63), 2**63 - 1])
    zeros = torch.zeros(3, dtype=torch.int64)
    together = gumbel_noise(seed, zeros, zeros, 100)
    for n in range(3):
        assert torch.equal(gumbel_noise(seed[n : n + 1], zeros[:1], zeros[:1], 100)[0], together[n])
    assert torch.equal(gumbel_noise(seed, zeros, zeros, 60), together[:, :60])


def noise_by_hand(seed: int, choice: int, index: int, token: int) -> float:
    start = (seed + choice * 0x9E3779B97F4A7C15) & MASK
    key = splitmix64_by_hand((splitmix64_by_hand(start) + index) & MASK)
    word = mix32_by_hand(mix32_by_hand(token, 0) ^ (key & 0xFFFFFFFF), key >> 32)
    w = min(((word & 0x7FFFFFFF) + 0.5) / 2**31, 1 - 2**-24)
    return -math.log(-math.log1p(-w))


def test_noise_is_the_formula_so_that_a_sequence_may_migrate_between_versions() -> None:
    keys = [(1, 0, 0), (-5, 3, 2), (2**63 - 1, 1, 100_000), (-(2**63), 127, 7)]
    seed, choice, index = (torch.tensor(column) for column in zip(*keys, strict=True))
    got = gumbel_noise(seed, choice, index, 2000)
    for row, key in zip(got.tolist(), keys, strict=True):
        expected = [noise_by_hand(*key, token) for token in range(2000)]
        # 1 - w in float32 is off by up to 2⁻²⁵, of at least 2⁻¹² where it is used.
        assert row == pytest.approx(expected, abs=2e-4)


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")])
    n, temperature = 20_000, 0.7
    counter = torch.arange(n)
    zeros = torch.zeros(n, dtype=torch.int64)
    draws = Draws(torch.full((n,), temperature), counter * 7919, zeros, counter)
    ids = sample(logits.expand(n, 5).contiguous(), draws)
    expected = (logits / temperature).softmax(-1).double()
    share = torch.bincount(ids, minlength=5) / n
    assert share[4] == 0
    chi_square = (n * (share[:4] - expected[:4]) ** 2 / expected[:4]).sum().item()
    assert chi_square < 16.3  # 3 degrees of freedom, p = 0.001


@pytest.mark.parametrize("vocab", [1, 63, 512, 70_000])
def test_sample_equals_its_reference_with_greedy_and_drawing_rows_mixed(vocab: int) -> None:
    logits = random_logits(5, vocab)
    logits[:, vocab // 2 :: 3] = float("-inf")
    logits[:, 0] = 0.0
    seed, choice, index = torch.tensor([1, 2, 2, 2, -3]), torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 5, 5, 6, 9])
    for temperature in ([0.0] * 5, [1.0, 0.5, 2.0, 1.0, 1e-4], [0.0, 1.0, 0.0, 0.7, 0.0]):
        args = (logits, Draws(torch.tensor(temperature), seed, choice, index))
        got = sample(*args)
        assert torch.equal(got, sample_reference(*args))
        is_greedy = torch.tensor(temperature) == 0
        assert torch.equal(got[is_greedy], greedy(logits)[is_greedy])


def test_the_first_of_equal_maxima_wins() -> None:
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [2.0, 2.0, 2.0, 2.0]])
    assert greedy(logits).tolist() == [1, 0]


@pytest.mark.parametrize("k", [0, 1, 5, 100])
def test_logprobs_equal_their_reference(k: int) -> None:
    logits = random_logits(4, 63)
    ids = torch.tensor([0, 62, 5, 7])
    got, expected = logprobs(logits, ids, k), logprobs_reference(logits, ids, k)
    torch.testing.assert_close(got.chosen, expected.chosen, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.top, expected.top, atol=1e-5, rtol=0)
    assert torch.equal(got.top_ids, expected.top_ids)
    assert got.top.shape == (4, min(k, 63))
    by_hand = logits.double() - logits.double().exp().sum(-1, keepdim=True).log()
    torch.testing.assert_close(expected.chosen.double(), by_hand.gather(1, ids[:, None])[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 1024, 1100])
@pytest.mark.parametrize("places", [[3, 0, 2], [1, 2, 3], [1, 3, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["compiled", "numpy"])
def test_masks_forbid_the_tokens_whose_bit_is_not_set(vocab: int, places: list[int], dtype: torch.dtype) -> None:
    logits = random_logits(4, vocab).to(dtype)
    allowed = torch.randint(-(2**31), 2**31, (3, mask_words(vocab) + 2), dtype=torch.int32)
    allowed[1] = 0
    rows = torch.tensor(places)
    got, expected = logits.clone(), logits.clone()
    forbid_tokens(got, rows, allowed)
    forbid_tokens_reference(expected, rows, allowed)
    assert torch.equal(got, expected)
    for row, words in zip(rows.tolist(), allowed.tolist(), strict=True):
        for token in range(vocab):
            is_allowed = words[token // 32] >> (token % 32) & 1
            assert got[row, token] == (logits[row, token] if is_allowed else float("-inf"))
    [untouched] = {0, 1, 2, 3} - set(places)
    assert torch.equal(got[untouched], logits[untouched])


def test_no_row_with_a_mask_changes_nothing() -> None:
    logits = random_logits(2, 40)
    got = logits.clone()
    forbid_tokens(got, torch.zeros(0, dtype=torch.int64), torch.zeros(0, 2, dtype=torch.int32))
    assert torch.equal(got, logits)


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "numpy"])
def test_what_is_prepared_once_follows_masks_that_change(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks keep their place in memory, and have other values at each draw."""
    if not is_compiled:
        monkeypatch.setattr(token_mask, "_is_compiled", lambda: False)
    random = np.random.default_rng(7)
    words = np.zeros((5, 7), dtype=np.uint32)[:4]  # of a memory that has more rows
    rows, masks = torch.tensor([3, 0, 2, 1]), torch.from_numpy(words.view(np.int32))
    places = np.array([0, 4, 6])
    bits = np.array([0b1011, 1 << 31, 2], dtype=np.uint32)
    forbid, look = forbidding(rows, masks), looking(words, places, bits)
    for turn in range(40):
        words[:] = random.integers(0, 1 << 32, words.shape, dtype=np.uint32)
        words[:, places] &= ~bits
        if turn % 2:
            place = int(random.integers(3))
            words[random.integers(4), places[place]] |= bits[place]
        assert look() is bool(turn % 2)
        got = random_logits(4, 200)
        expected = got.clone()
        forbid(got)
        forbid_tokens_reference(expected, rows, masks)
        assert torch.equal(got, expected)


def test_nothing_is_found_where_nothing_is_looked_for() -> None:
    nothing = np.zeros(0, dtype=np.int64)
    assert not looking(np.full((2, 3), 5, dtype=np.uint32), nothing, nothing.astype(np.uint32))()
    assert not looking(np.zeros((0, 3), dtype=np.uint32), np.array([1]), np.array([1], dtype=np.uint32))()
