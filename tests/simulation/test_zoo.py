"""The proof that the checks check: defects of the field, put back one at a time, each caught by an invariant."""

from __future__ import annotations

import pytest

from baton_testing.simulation.zoo.zoo import ZOO, Mutant, hunt


@pytest.mark.parametrize("mutant", ZOO, ids=lambda mutant: mutant.name)
def test_a_defect_of_the_field_is_caught_by_an_invariant(mutant: Mutant) -> None:
    catch, crashes = hunt(mutant)
    assert catch is not None, f"{mutant.name} passed; other errors: {crashes[:3]}"


def test_the_zoo_is_large_and_every_defect_names_its_thread() -> None:
    assert len(ZOO) >= 40
    assert len({mutant.name for mutant in ZOO}) == len(ZOO)
    assert all(mutant.defect.__doc__ for mutant in ZOO)
