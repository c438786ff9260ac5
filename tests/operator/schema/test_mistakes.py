"""The reader of files names the field, the value and what is allowed, for every mistake that people make."""

from __future__ import annotations

import pytest

from baton_control.errors import ManifestError, UnsupportedError, shown
from baton_control.spec.manifest import UNSHOWN, parse_object
from baton_operator.objects.pods import worker_template
from baton_testing.kube.mistakes import MISTAKES, Mistake, foreign_mistakes
from baton_testing.kube.stage import PLATFORM
from baton_wire.messages.values import Role


def test_there_are_enough_mistakes() -> None:
    assert len(MISTAKES) >= 60


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_named_with_its_field_and_what_is_allowed(mistake: Mistake) -> None:
    with pytest.raises((ManifestError, UnsupportedError)) as caught:
        worker_template(parse_object(mistake.on()), Role.DECODE, PLATFORM)
    error = caught.value
    lines = [str(problem) for problem in error.problems] if isinstance(error, ManifestError) else [str(error)]
    assert any(mistake.place in line and mistake.allowed in line for line in lines), lines
    is_shown = UNSHOWN.isdisjoint(mistake.path.split("."))
    if not mistake.field and isinstance(mistake.value, str | int) and is_shown:
        assert str(mistake.value) in str(caught.value) or shown(mistake.value) in str(caught.value)


def test_a_field_of_another_project_is_refused_with_the_one_that_is_meant() -> None:
    wrong = {}
    for field, path, raw in foreign_mistakes():
        with pytest.raises(ManifestError) as caught:
            parse_object(raw)
        if f"{path}: {field.message}" not in str(caught.value):
            wrong[path] = str(caught.value)
    assert wrong == {}
