"""The end of a comparison in a sentence: how much was lost, and what to do. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from baton_local.quality.comparison import Quality

FEW_TOKENS: Final = 2_000
"""Fewer compared tokens carry no verdict."""


class _Grade(NamedTuple):
    least_same: float
    """The least share of tokens with the same likeliest token."""
    most_perplexity: float
    """The largest ratio of the perplexities."""
    words: str


GRADES: Final = (
    _Grade(0.99, 1.005, "The model answers like the reference: use it in its place"),
    _Grade(
        0.97, 1.02, "The model lost little: fine for chats and summaries; test what depends on single digits or names"
    ),
    _Grade(0.93, 1.06, "The model lost something that users can notice: test it on your own task before you use it"),
    _Grade(
        0.0, float("inf"), "The model lost much: prefer more bits (int8, fp8), or a smaller model in full precision"
    ),
)
"""From the best to the worst; a model gets the first whose bounds it keeps."""


def verdict(quality: Quality) -> str:
    """How much the model lost and what to do, with the figures that it follows from."""
    prompts = quality.prompts
    same, mine, theirs = prompts.same_likeliest, prompts.perplexity, prompts.reference_perplexity
    if same is None or mine is None or theirs is None:
        return "Nothing was compared: use a longer text."
    ratio = mine / theirs
    change = f"perplexity {'rose' if ratio >= 1 else 'fell'} by {abs(ratio - 1):.1%}"
    figures = f"{same:.1%} of the likeliest tokens are the reference's, {change}"
    if quality.asked:
        figures += f", {quality.changed} of {quality.asked} answers differ"
    if prompts.tokens < FEW_TOKENS:
        few = f"only {prompts.tokens:,} tokens were compared, and it takes {FEW_TOKENS:,}"
        return f"No verdict: {few} ({figures}). Use a longer text."
    grade = next(grade for grade in GRADES if same >= grade.least_same and ratio <= grade.most_perplexity)
    return f"{grade.words} ({figures})."
