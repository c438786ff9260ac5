"""LLMDeployments for tests: a small valid one, and the same with one field changed."""

from __future__ import annotations

import copy
import json

from baton_control.spec.api import LLMDeployment
from baton_control.spec.manifest import parse_object

Json = dict[str, object]
KUBERNETES = ("1.33", "1.34", "1.35", "1.36")
"""Versions whose published schemas everything rendered has to fit."""

SMALLEST: Json = {
    "apiVersion": "baton.dev/v1alpha1",
    "kind": "LLMDeployment",
    "metadata": {"name": "chat"},
    "spec": {"model": {"source": "file:///model", "servedName": "tiny", "maxContextTokens": 512}},
}


def manifest(**fields: object) -> Json:
    """The smallest manifest with fields of the spec set: `manifest(prefill__replicas={"min": 2, "max": 2})`."""
    raw = copy.deepcopy(SMALLEST)
    for name, value in fields.items():
        set_at(raw, ("spec", *name.split("__")), value)
    return raw


def deployment(**fields: object) -> LLMDeployment:
    """The same, parsed."""
    return parse_object(manifest(**fields))


def set_at(raw: Json, path: tuple[str, ...], value: object) -> None:
    """Set a nested field, making the mappings on the way."""
    for part in path[:-1]:
        following = raw.setdefault(part, {})
        assert isinstance(following, dict)
        raw = following
    raw[path[-1]] = value


def as_yaml(raw: Json) -> str:
    """The manifest as a file's text; JSON is YAML."""
    return json.dumps(raw, indent=1)
