"""Edits in a row, some before the one before is through: the end state is that of a fresh create of the last one.

A share; the whole is `python -m campaigns.operator_proofs fields`.
"""

from __future__ import annotations

import random

import pytest

from baton_testing.kube.mutations import Bench, mutations, refusal, sequence

SEQUENCES = 8


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_edits_in_a_row_end_as_a_fresh_create_does(seed: int) -> None:
    good = [mutation for mutation in mutations() if refusal(mutation) is None]
    assert Bench().complaint(sequence(random.Random(seed), good)) is None
