"""Ranks that continue a prompt which another number of ranks computed answer as one rank that does both.

`campaigns.ranks --answers` has every cell.
"""

from __future__ import annotations

import random

import pytest

from baton_testing.kv_transfer.builders import key_directory
from baton_testing.ranks.answer_cells import ANSWER_CELLS, AnswerCell, AnswerCells

ALWAYS = [AnswerCell(2, 1, 1, "bf16"), AnswerCell(4, 8, 2, "mxfp4 experts")]


def chosen(seed: int, count: int) -> list[AnswerCell]:
    """Some cells by seed, those of one model next to each other."""
    others = [cell for cell in ANSWER_CELLS if cell not in ALWAYS]
    cells = ALWAYS + random.Random(seed).sample(others, count - len(ALWAYS))
    return sorted(cells, key=lambda cell: (cell.weights, cell.kv_heads))


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> AnswerCells:
    folder = tmp_path_factory.mktemp("answers")
    return AnswerCells(folder / "models", key_directory(folder / "keys"))


@pytest.mark.parametrize("cell", chosen(seed=56, count=12), ids=str)
async def test_ranks_continue_what_other_ranks_computed_as_one_rank_would(cells: AnswerCells, cell: AnswerCell) -> None:
    await cells.run(cell)
