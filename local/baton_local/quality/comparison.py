"""Compares two models by their log probabilities of the same tokens. Pure.

The API returns the likeliest tokens of each place, not all. So a divergence is computed over the tokens that both lists
have, with all others as one token more. Joining tokens never makes a divergence larger, so the result is a lower bound.
It is off by the mass outside times the divergence in there, and exact once that mass is zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ROUNDING: Final = 2.0**-18
"""Rounding of a sum of probabilities from float32 log probabilities; smaller differences are not significant."""
WORST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """One token in its place, as a model sees it."""

    token: str
    """Id of a token of a prompt; text of a token of an answer."""
    logprob: float
    likeliest: Mapping[str, float] | None
    """Log probabilities of the likeliest tokens, best first, perhaps with `token`; None: two had the same text."""

    @property
    def best(self) -> str | None:
        return None if self.likeliest is None else max(self.likeliest.items(), key=lambda entry: entry[1])[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison over the tokens of prompts, or of answers up to where they differ. None: no token was compared."""

    tokens: int
    same_likeliest: float | None
    """Share of the tokens with the same likeliest token."""
    divergence: float | None
    """Mean Kullback-Leibler divergence of the reference from the model, nats per token: a lower bound."""
    divergence_worst: float | None
    """One token in a hundred diverges at least this much."""
    divergence_greatest: float | None
    mass_outside: float | None
    """Mean share of the reference's probability on tokens that are not compared one by one."""
    perplexity: float | None
    reference_perplexity: float | None


@dataclass(frozen=True, slots=True)
class Quality:
    """The result of `baton quality`."""

    prompts: Comparison
    """Prompts, which prefill workers compute."""
    answers: Comparison
    """Answers, which decode workers compute but for the first token."""
    asked: int
    """Number of answers."""
    changed: int
    """Number of greedy answers that differ from the reference's."""


def divergence(reference: Mapping[str, float], model: Mapping[str, float]) -> tuple[float, float]:
    """The divergence (a lower bound, in nats), and the reference's probability mass outside of the common tokens.

    Each term is p (e^d - 1 - d) with d = ln q - ln p. Its sum is the usual one where both sum to 1, and no term is
    negative, so that rounding of p does not hide small divergences.
    """
    total = inside = inside_model = 0.0
    for token in reference.keys() & model.keys():
        p = math.exp(reference[token])
        q = math.exp(model[token])
        total += p * _excess(model[token] - reference[token]) if p > 0 else q
        inside, inside_model = inside + p, inside_model + q
    outside, outside_model = max(1.0 - inside, ROUNDING), max(1.0 - inside_model, ROUNDING)
    if abs(outside_model - outside) > ROUNDING:
        total += outside * _excess(math.log(outside_model / outside))
    return total, max(1.0 - inside, 0.0)


def compare(pairs: Sequence[tuple[Place, Place]]) -> Comparison:
    """Compare the reference's places with the model's, for the same tokens."""
    return _compare(pairs, perplexities=True)


def compare_answers(pairs: Sequence[tuple[Sequence[Place], Sequence[Place]]]) -> tuple[Comparison, int]:
    """Compare greedy answers, up to the first differing token of each; returns also how many answers differ."""
    places: list[tuple[Place, Place]] = []
    changed = 0
    for theirs, mine in pairs:
        parting = next((at for at, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a.token != b.token), None)
        changed += parting is not None or len(theirs) != len(mine)
        end = None if parting is None else parting + 1
        places += zip(theirs[:end], mine[:end], strict=False)
    return _compare(places, perplexities=False), changed


def _compare(pairs: Sequence[tuple[Place, Place]], perplexities: bool) -> Comparison:
    lists = [(a.likeliest, b.likeliest) for a, b in pairs if a.likeliest is not None and b.likeliest is not None]
    divergences = sorted(divergence(theirs, mine) for theirs, mine in lists)
    same = sum(theirs.best == mine.best for theirs, mine in pairs if theirs.best is not None and mine.best is not None)
    values = [nats for nats, _ in divergences]
    return Comparison(
        tokens=len(pairs),
        same_likeliest=same / len(lists) if lists else None,
        divergence=math.fsum(values) / len(values) if values else None,
        divergence_worst=values[-max(1, math.ceil(len(values) * WORST_SHARE))] if values else None,
        divergence_greatest=values[-1] if values else None,
        mass_outside=math.fsum(outside for _, outside in divergences) / len(divergences) if divergences else None,
        perplexity=_perplexity([mine for _, mine in pairs]) if perplexities else None,
        reference_perplexity=_perplexity([theirs for theirs, _ in pairs]) if perplexities else None,
    )


def _perplexity(places: Sequence[Place]) -> float | None:
    if not places:
        return None
    try:
        return math.exp(-math.fsum(place.logprob for place in places) / len(places))
    except OverflowError:
        return math.inf


def _excess(d: float) -> float:
    """e^d - 1 - d, at least 0."""
    return max(math.expm1(d) - d, 0.0)
