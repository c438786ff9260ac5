"""Fields of other projects: refused with the field that is meant, and never one of Baton's own."""

from __future__ import annotations

import re

import pytest

from baton_control.spec.allowed import fields_of
from baton_control.spec.api import KvTransferSpec, RoutingSpec
from baton_control.spec.base_model import Model
from baton_control.spec.foreign_fields import FOREIGN, ForeignField, find_foreign

MORE: tuple[type[Model], ...] = (KvTransferSpec, RoutingSpec)
ALL = [(model, field) for model, fields in FOREIGN.items() for field in fields]


@pytest.mark.parametrize(("model", "field"), ALL, ids=[field.name for _, field in ALL])
def test_a_foreign_field_is_not_one_of_ours_and_names_one_that_is(model: type[Model], field: ForeignField) -> None:
    assert field.name not in fields_of(model)
    assert find_foreign(model, field.name) == field
    known = {name for other in [*FOREIGN, *MORE] for name in fields_of(other)}
    named = set(re.findall(r"[a-z]+(?:[A-Z][a-z]+)*", field.meant))
    assert field.meant.startswith("nothing") or named & known


def test_no_field_is_listed_twice() -> None:
    names = [(model, field.name) for model, field in ALL]
    assert len(set(names)) == len(names)
    assert find_foreign(MORE[0], "uri") is None
