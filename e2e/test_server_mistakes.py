"""The API server names the field, the value and what is allowed, for every mistake that people make in a manifest.

`tests/operator/schema/test_mistakes.py` has the same of the reader of files.
"""

from __future__ import annotations

import json

import pytest

from baton_control.spec.foreign_fields import ForeignField
from baton_testing.kube.api_server import ApiServer, Json
from baton_testing.kube.mistakes import MISTAKES, Mistake, foreign_mistakes

DRY = "/apis/baton.dev/v1alpha1/namespaces/default/llmdeployments?dryRun=All"
NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_named_with_its_field_and_what_is_allowed(api: ApiServer, mistake: Mistake) -> None:
    reply = api.send("POST", f"{DRY}&fieldValidation=Strict", mistake.on())
    assert reply.status == (400 if mistake.on_server == "unknown field" else 422), reply.message
    place = mistake.place.replace(".nvidia.com/gpu", "")
    is_about_several = mistake.path in ("decode.replicas", "gateway") and mistake.on_server and not mistake.field
    assert is_about_several or place in reply.message, reply.message
    assert (mistake.on_server or mistake.allowed) in reply.message
    if not mistake.field and isinstance(mistake.value, str | int):
        shown = {json.dumps(mistake.value), NAMES[type(mistake.value)]}
        # For a rule over several fields, a server shows no value.
        is_of_several_fields = any(f"Invalid value: {word} " in reply.message for word in ("must", "fp8"))
        assert is_of_several_fields or any(text in reply.message for text in shown)


@pytest.mark.parametrize("strictness", ["Strict", "Ignore"])
def test_no_field_of_another_project_is_dropped_in_silence(api: ApiServer, strictness: str) -> None:
    wrong: dict[str, str] = {}
    for field, path, raw in foreign_mistakes():
        problem = _complaint(api, field, path, raw, strictness)
        wrong |= {} if problem is None else {path: problem}
    assert wrong == {}


def _complaint(api: ApiServer, field: ForeignField, path: str, raw: Json, strictness: str) -> str | None:
    """What is wrong with the server's answer; None: it refuses the field with the one that is meant."""
    reply = api.send("POST", f"{DRY}&fieldValidation={strictness}", raw)
    named = path.removesuffix(".nvidia.com/gpu")
    is_right = reply.status == 422 and named in reply.message and field.message in reply.message
    return None if is_right else f"{reply.status} {reply.message}"
