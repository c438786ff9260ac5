"""The plan of combinations: features, paths, and rows of features that cover every pair of values. Pure."""

from __future__ import annotations

import enum
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "family": (
        *("llama", "mistral, window", "gemma3", "phi3", "glm4", "qwen3-moe", "mixtral", "gpt-oss"),
        *("qwen2-moe", "glm4-moe", "minimax-m2", "granite", "seed-oss", "olmo2", "olmo3"),
        *("ernie4.5", "ernie4.5-moe", "hunyuan", "hunyuan-moe", "llama4", "granite-moe", "granite-4-dense"),
    ),
    "weights": ("as stored", "fp8", "int8", "int4", "gptq"),
    "kv": ("auto", "fp8"),
    "answer": ("free", "grammar"),
    "choices": ("1", "3"),
    "drawing": ("greedy", "sampled"),
    "penalties": ("none", "all"),
    "prefix": ("cold", "hit"),
    "chunks": ("whole", "pieces"),
}
"""Values of each feature. A family is dense or of experts, with windows or without."""


REFUSED: Final = frozenset({("kv", "fp8")})
"""Float8 KV needs a GPU. What else is refused is found out."""


class WayThrough(enum.StrEnum):
    """How a request is carried out."""

    ALONE = "one process"
    PAIR = "P and D"
    RETARGET = "D dies before KV lands"
    MIGRATION = "D dies after token 1"
    PREEMPTION = "D preempts"


class Verdict(enum.StrEnum):
    EQUAL = "equal"
    """The tokens of the same request in one process that does nothing else."""
    REFUSED = "refused"
    """One line that names a field, before anything is served."""
    DIFFERS = "differs"
    HANGS = "hangs"
    SILENT = "silent"
    """The request ended without an answer and without a field, or the way was never taken."""


GOOD: Final = frozenset({Verdict.EQUAL, Verdict.REFUSED})
Row = tuple[str, ...]
"""One value of each feature, in the order of FEATURES."""


@dataclass(frozen=True, slots=True)
class Cell:
    row: Row
    way: WayThrough
    seed: int

    def has(self, feature: str, value: str) -> bool:
        return self.row[list(FEATURES).index(feature)] == value

    def of(self, feature: str) -> str:
        return self.row[list(FEATURES).index(feature)]


Pair = tuple[tuple[int, str], tuple[int, str]]
"""Values of two features, by their places."""


def pairs_of(row: Sequence[str]) -> Iterator[Pair]:
    """The pairs that a row covers. A row that has to be refused covers only the pairs with its refused values."""
    refused = [place for place, (name, value) in enumerate(zip(FEATURES, row, strict=True)) if (name, value) in REFUSED]
    for pair in combinations(enumerate(row), 2):
        if not refused or any(place in refused for place, _ in pair):
            yield pair


def all_pairs() -> set[Pair]:
    values = list(FEATURES.values())
    places = combinations(range(len(values)), 2)
    return {((a, one), (b, other)) for a, b in places for one, other in product(values[a], values[b])}


def covering_rows(seed: int) -> tuple[Row, ...]:
    """Rows that cover every pair of values of two features at least once; greedy, another set for each seed."""
    chance = random.Random(seed)
    values = list(FEATURES.values())
    left = all_pairs()
    rows: list[Row] = []
    while left:
        first = chance.choice(sorted(left))
        tries = [_row_with(dict(first), values, left, chance) for _ in range(20)]
        best = max(tries, key=lambda row: sum(pair in left for pair in pairs_of(row)))
        left.difference_update(pairs_of(best))
        rows.append(best)
    return tuple(rows)


def _row_with(
    fixed: dict[int, str],
    values: list[tuple[str, ...]],
    left: set[Pair],
    chance: random.Random,
) -> Row:
    row = dict(fixed)
    places = [place for place in range(len(values)) if place not in row]
    chance.shuffle(places)
    for place in places:

        def gain(value: str, place: int = place) -> tuple[int, float]:
            new = sum(tuple(sorted(((place, value), known))) in left for known in row.items())
            return new, chance.random()

        row[place] = max(values[place], key=gain)
    return tuple(row[place] for place in range(len(values)))


def cells(seeds: Sequence[int]) -> tuple[Cell, ...]:
    """All ways for every row of every seed."""
    return tuple(Cell(row, way, seed) for seed in seeds for row in covering_rows(seed) for way in WayThrough)
