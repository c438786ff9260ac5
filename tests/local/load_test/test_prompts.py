"""Prompts of a load: as long as asked for, fresh where they are not shared, and the same for the same seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_local.load_test.prompts import IdPrompts, word_prompts, words


@given(st.integers(1, 300), st.integers(0, 299), st.integers(1, 5))
def test_ids_are_as_many_as_asked_for_and_the_shared_ones_are_a_beginning(
    tokens: int, shared: int, beginnings: int
) -> None:
    shared = min(shared, tokens - 1)
    prompts = IdPrompts(16, 499, beginnings=beginnings)
    one, again = prompts.prompt(1, 7, tokens, shared), prompts.prompt(1, 7, tokens, shared)
    assert one == again
    assert len(one) == tokens
    assert all(16 <= token <= 499 for token in one)
    starts = {tuple(prompts.prompt(1, place, tokens, shared)[:shared]) for place in range(20)}
    assert len(starts) <= beginnings


def test_what_is_not_shared_is_of_one_prompt_alone() -> None:
    prompts = IdPrompts(16, 499)
    rest = {tuple(prompts.prompt(load, place, 40, 20)[20:]) for load in (1, 2) for place in range(50)}
    assert len(rest) == 100


def test_another_run_has_other_prompts_and_other_beginnings() -> None:
    one, other = (IdPrompts(16, 499, salt=salt).prompt(1, 1, 40, 20) for salt in (1, 2))
    assert one[:20] != other[:20]
    assert one[20:] != other[20:]


@pytest.mark.parametrize(("base", "per_word"), [(1, 3), (0, 1), (12, 2)])
def test_words_become_as_many_tokens_as_the_server_counts(base: int, per_word: int) -> None:
    def counted(text: str) -> int:
        return base + per_word * len(text.split())

    sample = [(count, counted(" ".join(words(random.Random(1), count)))) for count in (16, 256)]
    prompts = word_prompts(sample, 0, 2)
    for tokens in (30, 512, 4_000):
        assert counted(prompts.prompt(1, 0, tokens, 10)) == pytest.approx(tokens, abs=per_word)


def test_a_prompt_shorter_than_what_comes_with_any_still_has_a_word() -> None:
    assert len(word_prompts([(16, 60), (256, 540)], 0, 1).prompt(1, 1, 1, 0).split()) == 1
