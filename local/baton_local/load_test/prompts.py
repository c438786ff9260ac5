"""Prompts of a given length: random token ids, or random words for servers that take text alone.

The shared part of a prompt comes from one of a few beginnings, so that prefix caches can hit; the rest is unique. The
same salt, load and place give the same prompt. Each run takes a salt of its own, so that a server has none of its
prompts in the cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

_CONSONANTS, _VOWELS = "bdfgklmnprstvz", "aeiou"
_SYLLABLES = [consonant + vowel for consonant in _CONSONANTS for vowel in _VOWELS]


class Prompts(Protocol):
    """Makes the prompt at a place of a load."""

    def prompt(self, load: int, place: int, tokens: int, shared: int) -> list[int] | str:
        """A prompt of `tokens` tokens, of which the first `shared` are a common beginning."""
        ...


@dataclass(frozen=True, slots=True)
class IdPrompts:
    """Prompts of random token ids from `first` to `last`, with exactly the requested length."""

    first: int
    last: int
    salt: int = 0
    beginnings: int = 1

    def prompt(self, load: int, place: int, tokens: int, shared: int) -> list[int]:
        draw = random.Random(f"{self.salt} {load} {place}")
        ids = range(self.first, self.last + 1)
        return _beginning(draw, self).choices(ids, k=shared) + draw.choices(ids, k=tokens - shared)


@dataclass(frozen=True, slots=True)
class WordPrompts:
    """Prompts of random words, with the requested length on average: `base` tokens, and `per_word` for each word."""

    base: float
    per_word: float
    salt: int = 0
    beginnings: int = 1

    def prompt(self, load: int, place: int, tokens: int, shared: int) -> str:
        draw = random.Random(f"{self.salt} {load} {place}")
        count = max(1, round((tokens - self.base) / self.per_word))
        common = min(count - 1, round(shared / self.per_word))
        return " ".join(words(_beginning(draw, self), common) + words(draw, count - common))


def words(draw: random.Random, count: int) -> list[str]:
    """Words of two syllables, the same for the same state of `draw`."""
    syllables = draw.choices(_SYLLABLES, k=2 * count)
    return [first + second for first, second in zip(syllables[::2], syllables[1::2], strict=True)]


def word_prompts(counted: Sequence[tuple[int, int]], salt: int, beginnings: int) -> WordPrompts:
    """Prompts calibrated by a server's counts: (words, tokens) of two prompts of unequal length."""
    (few, few_tokens), (many, many_tokens) = counted
    per_word = max(0.1, (many_tokens - few_tokens) / (many - few))
    return WordPrompts(max(0.0, few_tokens - per_word * few), per_word, salt, beginnings)


def _beginning(draw: random.Random, of: IdPrompts | WordPrompts) -> random.Random:
    return random.Random(f"{of.salt} {draw.randrange(of.beginnings)}")
