"""The sentence at the end of `baton quality`."""

from __future__ import annotations

import pytest

from baton_local.quality.comparison import Comparison, Quality
from baton_local.quality.verdict import verdict


def quality(same: float | None, perplexity: float | None, tokens: int = 5_000, changed: int = 3) -> Quality:
    prompts = Comparison(tokens, same, 0.01, 0.1, 0.2, 0.0, perplexity, None if perplexity is None else 10.0)
    return Quality(prompts, prompts, 20, changed)


@pytest.mark.parametrize(
    ("same", "perplexity", "words"),
    [
        (0.998, 10.01, "answers like the reference"),
        (0.998, 10.15, "lost little"),
        (0.975, 10.01, "lost little"),
        (0.95, 10.3, "users can notice"),
        (0.95, 12.0, "lost much"),
        (0.4, 9.0, "lost much"),
        (0.998, 9.9, "answers like the reference"),
    ],
)
def test_a_verdict_follows_from_tokens_and_perplexity(same: float, perplexity: float, words: str) -> None:
    assert words in verdict(quality(same, perplexity))


def test_a_verdict_shows_the_figures_that_it_follows_from() -> None:
    assert verdict(quality(0.998, 10.15)).endswith(
        "(99.8% of the likeliest tokens are the reference's, perplexity rose by 1.5%, 3 of 20 answers differ)."
    )


@pytest.mark.parametrize("same", [1.0, 0.4])
def test_few_tokens_carry_no_verdict(same: float) -> None:
    """Found: "use it in its place" after 188 tokens, with every answer changed."""
    text = verdict(quality(same, 10.0, tokens=188))
    assert text.startswith(f"No verdict: only 188 tokens were compared, and it takes 2,000 ({same:.1%} of ")
    assert text.endswith("3 of 20 answers differ). Use a longer text.")
    assert not any(words in text for words in ("in its place", "lost"))


def test_nothing_compared_is_said() -> None:
    assert verdict(quality(None, None, tokens=0)) == "Nothing was compared: use a longer text."
