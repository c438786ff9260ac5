"""The matrix of combinations: its plan, one whole set of rows each way, and that a wrong token shows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from baton_testing.combinations.cells import Matrix
from baton_testing.combinations.plan import GOOD, Cell, Row, Verdict, WayThrough, all_pairs, covering_rows, pairs_of

ROOT = Path(__file__).parents[2]
PLAIN: Row = ("llama", "as stored", "auto", "free", "1", "greedy", "none", "cold", "whole")


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    with Matrix(tmp_path_factory.mktemp("combinations")) as running:
        yield running


@pytest.mark.parametrize("seed", range(3))
def test_every_pair_of_values_stands_in_a_row_that_is_not_refused_for_another(seed: int) -> None:
    rows = covering_rows(seed)
    assert {pair for row in rows for pair in pairs_of(row)} == all_pairs()
    assert covering_rows(seed) == rows


@pytest.mark.parametrize("way", WayThrough)
@pytest.mark.parametrize("row", covering_rows(0), ids="-".join)
def test_a_combination_is_equal_or_refused(row: Row, way: WayThrough, matrix: Matrix) -> None:
    result = matrix.run(Cell(row, way, 0))
    assert result.verdict in GOOD, result.why


@pytest.mark.parametrize("way", WayThrough)
def test_a_wrong_token_shows(way: WayThrough, matrix: Matrix) -> None:
    cell = Cell(PLAIN, way, 0)
    assert matrix.run(cell).verdict is Verdict.EQUAL
    wanted = matrix.reference(cell)
    wanted[0][-1] += 1
    assert matrix.run(cell).verdict is Verdict.DIFFERS
    wanted[0][-1] -= 1


def test_every_planned_cell_is_recorded_and_the_page_says_so() -> None:
    command = [sys.executable, "-m", "bench", "combinations", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
