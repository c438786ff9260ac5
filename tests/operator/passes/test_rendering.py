"""Equal inputs are rendered once, and a rendering is never used after a change of an input."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from baton_control.errors import ManifestError
from baton_operator.kube.kinds import BUDGETS, OPTIONAL
from baton_operator.objects.cluster import Owner
from baton_operator.passes.rendering import KEPT, Inputs, Rendering, Renderings, render
from baton_testing.kube.world import MASTERS, PLATFORM, deployment_body, newer


def inputs(uid: str = "u1", **fields: object) -> Inputs:
    return Inputs(
        msgspec.json.encode(deployment_body(**fields)), "", Owner(uid), (), PLATFORM, dict(MASTERS), frozenset(OPTIONAL)
    )


def counting() -> tuple[Renderings, list[Inputs]]:
    rendered: list[Inputs] = []

    def make(given: Inputs) -> Rendering:
        rendered.append(given)
        return render(given)

    return Renderings(make), rendered


def test_equal_inputs_are_rendered_once_and_every_other_anew() -> None:
    renderings, rendered = counting()
    first = renderings.of(inputs())
    assert renderings.of(inputs()) is first
    changed = [
        inputs(gateway={"replicas": 2}),
        replace(inputs(), upgrade="1"),
        replace(inputs(), platform=newer(PLATFORM)),
        replace(inputs(), masters={**MASTERS, "second": b"n" * 32}),
        replace(inputs(), served=frozenset()),
    ]
    for changed_inputs in changed:
        assert renderings.of(changed_inputs) == render(changed_inputs)
    assert rendered == [inputs(), *changed]


def test_a_wrong_spec_is_told_each_time_and_the_right_one_after_it_is_new() -> None:
    renderings, rendered = counting()
    wrong = inputs(rollout={"maxSurge": 0, "maxUnavailable": 0})
    for _ in range(2):
        with pytest.raises(ManifestError, match="maxSurge"):
            renderings.of(wrong)
    renderings.of(inputs())
    assert rendered == [wrong, wrong, inputs()]


def test_a_value_of_another_type_is_another_value() -> None:
    renderings, _ = counting()
    renderings.of(inputs(gateway={"replicas": 1}))
    with pytest.raises(ManifestError, match=r"spec\.gateway\.replicas"):
        renderings.of(inputs(gateway={"replicas": True}))


def test_only_the_latest_deployments_are_kept() -> None:
    example, rendered = render(inputs()), []

    def make(given: Inputs) -> Rendering:
        rendered.append(given.owner.uid)
        return example

    renderings = Renderings(make)
    for number in range(KEPT + 1):
        renderings.of(inputs(f"u{number}"))
    renderings.of(inputs(f"u{KEPT}"))
    renderings.of(inputs("u0"))
    assert rendered == [*(f"u{number}" for number in range(KEPT + 1)), "u0"]


def test_what_is_not_served_is_left_out_and_said() -> None:
    less = render(replace(inputs(), served=frozenset()))
    assert {desired.resource for desired in render(inputs()).standing} - {
        desired.resource for desired in less.standing
    } == {BUDGETS}
    assert less.notes == ("PodDisruptionBudgets are left out: policy/v1 is not served, or not granted",)
