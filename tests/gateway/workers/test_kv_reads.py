"""What reading KV costs is learned from steps that differ in it, and from nothing else."""

from __future__ import annotations

import random

import pytest

from baton_gateway.workers.kv_reads import KvReads
from baton_wire.messages.measures import StepTiming


def step(kv_tokens: int, seconds: float, rows: int = 8, prompt: int = 0) -> StepTiming:
    return StepTiming(0, prompt, 0.0, rows, kv_tokens, seconds)


def test_without_steps_or_with_steps_that_are_alike_nothing_is_known() -> None:
    reads = KvReads()
    assert (reads.kv_token_s, reads.fixed_s) == (None, None)
    for _ in range(100):
        reads.observe(step(50_000, 0.006))
    assert reads.kv_token_s is None


def test_steps_with_prompts_and_steps_without_rows_teach_nothing() -> None:
    reads = KvReads()
    for kv_tokens in range(10_000, 60_000, 1_000):
        reads.observe(step(kv_tokens, 0.1, prompt=64))
        reads.observe(step(0, 0.1, rows=0))
    assert reads.kv_token_s is None


@pytest.mark.parametrize("seed", range(4))
def test_noise_moves_the_estimate_little_and_what_is_learned_stays_while_steps_are_alike(seed: int) -> None:
    dice, reads = random.Random(seed), KvReads()
    for _ in range(400):
        kv_tokens = dice.randint(20_000, 400_000)
        reads.observe(step(kv_tokens, (0.00415 + 30e-9 * kv_tokens) * dice.uniform(0.95, 1.05)))
    assert reads.kv_token_s == pytest.approx(30e-9, rel=0.1)
    for _ in range(2_000):
        reads.observe(step(300_000, 0.01315))
    assert reads.kv_token_s == pytest.approx(30e-9, rel=0.1)


def test_an_estimate_is_never_negative_nor_more_than_a_whole_step() -> None:
    reads = KvReads()
    for kv_tokens in range(10_000, 60_000, 1_000):
        reads.observe(step(kv_tokens, 1.0 / kv_tokens))
    assert reads.kv_token_s == 0.0
    assert reads.fixed_s is not None
    assert reads.fixed_s >= 0.0
