"""The same manifest applied again changes nothing: every example, and every value of every field that is accepted.

`kubectl apply` and Argo CD compare what was applied with what the server stored, lists as a whole.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton_testing.kube.api_server import ApiServer
from baton_testing.kube.mutations import UNSET, Mutation, base, mutations, refusal

Json = dict[str, Any]
EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.yaml"))
VALUES = [
    mutation for mutation in mutations() if mutation.value is not UNSET and "null" not in json.dumps(mutation.value)
]
"""A null is no value: a server drops it, or refuses it in an entry of a list."""


def differences(applied: Any, live: Any, path: str) -> list[str]:
    """The paths that a second client-side apply would patch: mappings by field, lists as a whole."""
    if isinstance(applied, dict) and isinstance(live, dict):
        return [
            found for name, value in applied.items() for found in differences(value, live.get(name), f"{path}.{name}")
        ]
    return [] if applied == live else [f"{path}: {applied!r} is stored as {live!r}"]


def apply_twice(api: ApiServer, raw: Json) -> list[str]:
    """What a second apply of the object would change, or did change."""
    namespace, name = raw["metadata"].get("namespace", "default"), raw["metadata"]["name"]
    place = f"/apis/baton.dev/v1alpha1/namespaces/{namespace}/llmdeployments/{name}"
    body = copy.deepcopy(raw)
    replies = [
        api.send("PATCH", f"{place}?fieldManager=kubectl&fieldValidation=Strict", body, kind="apply-patch+yaml")
        for _ in range(2)
    ]
    try:
        assert [reply.status for reply in replies] == [201, 200], replies[0].message
        first, second = (reply.body for reply in replies)
        changed = [] if first["metadata"] == second["metadata"] else ["a second server-side apply wrote the object"]
        return changed + differences(raw["spec"], first["spec"], "spec")
    finally:
        api.send("DELETE", place)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.name))
def test_an_example_that_is_applied_twice_is_unchanged(api: ApiServer, path: Path) -> None:
    raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    if raw["spec"]["model"]["source"].startswith("file://tiny"):
        raw["spec"]["model"]["source"] = "file:///models/tiny-llama"
    assert apply_twice(api, raw) == []


def test_every_value_of_every_field_that_is_applied_twice_is_unchanged(api: ApiServer) -> None:
    accepted = [mutation for mutation in VALUES if refusal(mutation) is None]
    assert len(accepted) > 100
    assert {str(mutation): found for mutation in accepted if (found := apply_twice(api, _object(mutation)))} == {}


def _object(mutation: Mutation) -> Json:
    return {**mutation.on(base()), "metadata": {"name": "chat", "namespace": "default"}}
