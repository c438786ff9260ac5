"""Resources of containers: equal ones have one normal form, however they are spelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton_control.spec.manifest import parse_object
from baton_control.spec.resource_quantities import BYTES
from baton_testing.kube.manifests import manifest

SPELLINGS: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"cpu": 4}, {"cpu": "4"}),
    ({"cpu": "4000m"}, {"cpu": "4"}),
    ({"cpu": "0.5"}, {"cpu": "500m"}),
    ({"cpu": ".25"}, {"cpu": "250m"}),
    ({"cpu": "1.0001"}, {"cpu": "1001m"}),
    ({"memory": "1024Mi"}, {"memory": "1Gi"}),
    ({"memory": 1 << 30}, {"memory": "1Gi"}),
    ({"memory": "8000M"}, {"memory": "8G"}),
    ({"memory": "1e9"}, {"memory": "1G"}),
    ({"memory": "1.1Gi"}, {"memory": "1181116007"}),
    ({"requests": {"cpu": 4, "memory": "8Gi"}, "limits": {"memory": "8Gi"}}, {"cpu": "4", "memory": "8Gi"}),
    ({"limits": {"memory": "8Gi"}}, {"memory": "8Gi"}),
    ({"limits": {"cpu": 2}}, {"cpu": 2, "limits": {"cpu": "2000m"}}),
    (
        {"limits": {"ephemeral-storage": "1Gi"}},
        {"requests": {"ephemeral-storage": "1024Mi"}, "limits": {"ephemeral-storage": "1Gi"}},
    ),
    ({"requests": {}, "limits": {}}, {}),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_equal_resources_in_two_spellings_have_one_normal_form(
    one: dict[str, object], other: dict[str, object]
) -> None:
    first, second = (parse_object(manifest(decode__resources=given)).spec.decode.resources for given in (one, other))
    assert first == second
    dump = first.model_dump(mode="json", by_alias=True)
    assert parse_object(manifest(decode__resources=dump)).spec.decode.resources == first


@given(st.integers(min_value=1, max_value=1 << 62))
def test_the_normal_form_of_bytes_loses_none(count: int) -> None:
    assert BYTES.count(BYTES.normal(count)) == count
    assert len(BYTES.normal(count)) <= len(str(count)) + 1
