"""What two models say of the same tokens, compared. Pure.

The API tells the likeliest tokens of each place, not all. So a divergence is computed over the tokens that both lists
hold, with everything else as one token more. Joining tokens never makes a divergence larger: what is told is a lower
bound. It is off by the mass outside times the divergence of what lies there, and exact once that mass is nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

ROUNDING: Final = 2.0**-18
"""Of a sum of probabilities from float32 log probabilities: rests that differ by less are not known to differ."""
WORST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Place:
    """One token in its place, as a model sees it."""

    token: str
    """The id of a prompt's token; the text of an answer's."""
    logprob: float
    likeliest: Mapping[str, float] | None
    """Log probabilities of the likeliest tokens, best first, perhaps with `token`; None: two had the same text."""

    @property
    def best(self) -> str | None:
        return None if self.likeliest is None else max(self.likeliest.items(), key=lambda entry: entry[1])[0]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Over the tokens of prompts, or of answers up to where they part."""

    tokens: int
    same_likeliest: float | None
    """Share of them; None: there are none. So for all that follow."""
    divergence: float | None
    """Kullback-Leibler, of the reference from the model, nats a token, mean. At least so much."""
    divergence_worst: float | None
    """One token of a hundred diverges by so much or more."""
    divergence_greatest: float | None
    mass_outside: float | None
    """Share of the reference's probability that lies on tokens not compared one by one, mean."""
    perplexity: float | None
    reference_perplexity: float | None


@dataclass(frozen=True, slots=True)
class Quality:
    prompts: Comparison
    """As prefill workers compute."""
    answers: Comparison
    """As decode workers compute, but for the first token of each."""
    asked: int
    changed: int
    """Greedy answers that are not the reference's, of `asked`."""


def divergence(reference: Mapping[str, float], model: Mapping[str, float]) -> tuple[float, float]:
    """Lower bound in nats, and the reference's mass outside of what both lists hold.

    Each term is p (e^d - 1 - d) with d = ln q - ln p. Its sum is the usual one where both sum to 1, and no term is
    negative, so that rounding of p does not hide small divergences.
    """
    total = inside = inside_model = 0.0
    for token in reference.keys() & model.keys():
        p = math.exp(reference[token])
        q = math.exp(model[token])
        total += p * _excess(model[token] - reference[token]) if p > 0 else q
        inside, inside_model = inside + p, inside_model + q
    outside, outside_model = (max(1.0 - each, ROUNDING) for each in (inside, inside_model))
    if abs(outside_model - outside) > ROUNDING:
        total += outside * _excess(math.log(outside_model / outside))
    return total, max(1.0 - inside, 0.0)


def compare(pairs: Sequence[tuple[Place, Place]]) -> Comparison:
    """The reference's places with the model's, of the same tokens."""
    return _compared(pairs, perplexities=True)


def compare_answers(pairs: Sequence[tuple[Sequence[Place], Sequence[Place]]]) -> tuple[Comparison, int]:
    """Greedy answers, and how many are not the same. The token where two part is the last one with the same context."""
    places: list[tuple[Place, Place]] = []
    changed = 0
    for theirs, mine in pairs:
        parting = next((at for at, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a.token != b.token), None)
        changed += parting is not None or len(theirs) != len(mine)
        end = None if parting is None else parting + 1
        places += zip(theirs[:end], mine[:end], strict=False)
    return _compared(places, perplexities=False), changed


def _compared(pairs: Sequence[tuple[Place, Place]], perplexities: bool) -> Comparison:
    told = [(a.likeliest, b.likeliest) for a, b in pairs if a.likeliest is not None and b.likeliest is not None]
    found = sorted(divergence(theirs, mine) for theirs, mine in told)
    same = sum(theirs.best == mine.best for theirs, mine in pairs if theirs.best is not None and mine.best is not None)
    values = [nats for nats, _ in found]
    return Comparison(
        tokens=len(pairs),
        same_likeliest=same / len(told) if told else None,
        divergence=math.fsum(values) / len(values) if values else None,
        divergence_worst=values[-max(1, math.ceil(len(values) * WORST_SHARE))] if values else None,
        divergence_greatest=values[-1] if values else None,
        mass_outside=math.fsum(outside for _, outside in found) / len(found) if found else None,
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
