"""The definitions as text: structural, bounded everywhere, small, and what the API types say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field, StringConstraints

from baton_control.spec.api import LLMDeployment
from baton_control.spec.base_model import Model
from baton_control.spec.model_source import parse_source, source_pattern
from baton_operator.schema.crd import definitions, main, text_of
from baton_operator.schema.reference import COMING_FROM, SAME_AS_PREFILL, rows
from baton_operator.schema.structural import Schema, UnboundedError, schema_of
from baton_testing.kube.manifests import manifest
from baton_testing.kube.mutations import is_foreign
from baton_testing.kube.yaml_documents import documents

CRDS = Path(__file__).parents[3] / "crds"
FORBIDDEN = {"$ref", "anyOf", "oneOf", "allOf", "not", "definitions", "const", "title", "patternProperties"}
FORBIDDEN_NAMES = {
    "securityContext",
    "hostPath",
    "hostNetwork",
    "initContainers",
    "serviceAccountName",
    "command",
    "secretKeyRef",
    "valueFrom",
}
"""Entries of `env` have only literal values, for names that the installation lists: test_pod_options.py."""


def nodes(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema inside a schema, but for fields that are there only to be refused."""
    if is_foreign(schema):
        return
    yield path, schema
    inner = schema.get("properties", {})
    assert isinstance(inner, dict)
    for name, field in inner.items():
        yield from nodes(field, f"{path}.{name}" if path else name)
    for below in ("items", "additionalProperties"):
        value = schema.get(below)
        if isinstance(value, dict):
            yield from nodes(value, f"{path}[]")


def root(name: str) -> Schema:
    spec = definitions()[name]["spec"]
    assert isinstance(spec, dict)
    schema: Schema = spec["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


BOTH = pytest.mark.parametrize("name", ["llmdeployments.yaml", "llmpools.yaml"])


@BOTH
def test_a_definition_is_structural_and_bounded_everywhere(name: str) -> None:
    loose = []
    for path, schema in nodes(root(name)):
        assert not FORBIDDEN & set(schema), path
        kind = "string" if "x-kubernetes-int-or-string" in schema else schema["type"]
        bounds = {
            "string": "enum" in schema or "maxLength" in schema,
            "integer": {"minimum", "maximum"} <= set(schema),
            "number": {"minimum", "maximum"} <= set(schema),
            "array": "maxItems" in schema and "items" in schema,
            "object": "properties" in schema or "maxProperties" in schema,
            "boolean": True,
        }
        if not bounds[str(kind)] and path not in {"apiVersion", "kind", "metadata"}:
            loose.append(path)
    assert loose == []


@BOTH
def test_the_written_definition_is_the_generated_one(name: str) -> None:
    assert next(documents((CRDS / name).read_text(encoding="utf-8"))) == definitions()[name]
    assert (CRDS / name).read_text(encoding="utf-8") == text_of(definitions()[name])


@BOTH
def test_every_field_says_what_it_means(name: str) -> None:
    silent = [
        path
        for path, schema in nodes(root(name))
        if path[-2:] not in ("", "[]") and path != "metadata" and not words(schema)
    ]
    assert silent == []


@BOTH
def test_every_default_of_a_value_is_said(name: str) -> None:
    values = [(path, schema) for path, schema in nodes(root(name)) if isinstance(schema.get("default"), str | int)]
    assert [path for path, schema in values if "Default: " not in words(schema)] == []


def words(schema: Schema) -> str:
    """The description of a field in `kubectl explain`."""
    return str(schema.get("description", ""))


def test_the_reference_and_the_definition_say_the_same() -> None:
    explained = {path: words(schema) for path, schema in nodes(root("llmdeployments.yaml"))}
    descriptions = {row.path: row.description for row in rows(LLMDeployment, "") if row.path.startswith("spec.")}
    assert {path: text for path, text in descriptions.items() if not text or not explained[path].startswith(text)} == {}


def test_client_side_apply_can_keep_each_definition_in_its_annotation() -> None:
    # `kubectl apply` stores the whole object as JSON in one annotation; all annotations together hold 262,144 bytes.
    sizes = {
        path.name: len(json.dumps(next(documents(path.read_text())), separators=(",", ":"))) for path in CRDS.iterdir()
    }
    assert set(sizes) == set(definitions())
    assert max(sizes.values()) < 150_000
    assert sum(sizes.values()) < 200_000


@BOTH
def test_no_default_is_inside_an_entry_of_a_list(name: str) -> None:
    # A client that compares lists as a whole, such as Argo CD, would see a difference for ever.
    inside = [path for path, schema in nodes(root(name)) if "[]" in path and "default" in schema]
    assert inside == []


@BOTH
def test_no_pattern_with_a_sentence_is_told_as_a_pattern(name: str) -> None:
    patterns = {path for path, schema in nodes(root(name)) if "pattern" in schema}
    assert {path for path in patterns if path.startswith("spec.")} == set()


def test_no_field_gives_a_tenant_a_way_into_the_pod() -> None:
    names = {path.rpartition(".")[2] for path, _ in nodes(root("llmdeployments.yaml"))}
    assert not names & FORBIDDEN_NAMES


def test_the_definition_has_every_field_of_the_reference() -> None:
    have = {path for path, _ in nodes(root("llmdeployments.yaml"))}
    want = {row.path for row in rows(LLMDeployment, "") if row.path.startswith("spec.")}
    assert want <= have


def test_the_check_fails_on_a_stale_or_missing_file(tmp_path: Path) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    (tmp_path / "llmpools.yaml").write_text("{}")
    assert main(["--check", str(tmp_path)]) == 1


class Inner(Model):
    """The inner values."""

    size: Annotated[int, Field(ge=0, le=7)] = 3
    """How much."""
    name: Annotated[str, StringConstraints(max_length=5)] | None = None


class Outer(Model):
    inner: Inner = Inner()
    items: Annotated[tuple[Inner, ...], Field(max_length=2)] = ()
    flag: bool


def test_a_model_is_written_out_where_it_is_used() -> None:
    inner = {
        "type": "object",
        "properties": {
            "size": {
                "description": "How much. Default: 3.",
                "type": "integer",
                "format": "int32",
                "minimum": 0,
                "maximum": 7,
                "default": 3,
            },
            "name": {"type": "string", "maxLength": 5},
        },
    }
    without_defaults = json.loads(json.dumps(inner))
    del without_defaults["properties"]["size"]["default"]
    assert schema_of(Outer) == {
        "type": "object",
        "properties": {
            "inner": {"description": "The inner values.", **inner, "default": {"size": 3}},
            "items": {"type": "array", "maxItems": 2, "x-kubernetes-list-type": "atomic", "items": without_defaults},
            "flag": {"type": "boolean"},
        },
        "required": ["flag"],
    }


@pytest.mark.parametrize(
    "annotation", [int, str, Annotated[int, Field(ge=0)], tuple[bool, ...], dict[str, bool], bytes, object]
)
def test_a_type_without_a_bound_has_no_schema(annotation: object) -> None:
    with pytest.raises(UnboundedError):
        schema_of(annotation)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("file://a/b c", True),
        ("file://", False),
        ("random://a/config.json", True),
        ("random:///a/config.json", True),
        ("random://a/config.json?seed=1", False),
        ("random://a", False),
        ("pvc://claim/a/b", True),
        ("pvc://claim", False),
        ("hf://org/name@" + "0" * 40, True),
        ("hf://org/name@main", False),
        ("s3://bucket/a", True),
        ("oci://host:5000/a@sha256:" + "a" * 64, True),
        ("oci://host/a:tag", False),
        ("http://host/a", False),
    ],
)
def test_the_pattern_of_sources_says_what_the_parser_says(text: str, allowed: bool) -> None:
    assert (re.search(source_pattern(), text) is not None) == allowed
    if allowed:
        parse_source(text)
    else:
        with pytest.raises(ValueError, match="must be"):
            parse_source(text)


def test_the_name_of_a_deployment_is_not_left_to_the_server() -> None:
    metadata = manifest()["metadata"]
    assert metadata == {"name": "chat"}
    rules = root("llmdeployments.yaml")["x-kubernetes-validations"]
    assert isinstance(rules, list)
    assert "metadata.name" in rules[0]["rule"]


def test_fields_in_the_table_of_other_systems_exist() -> None:
    listed = {row.path for row in rows(LLMDeployment, "")}
    inner = {path.rpartition(".")[0] for path in listed}
    inner |= {path.rpartition(".")[0] for path in inner}
    for _, _, ours in COMING_FROM:
        for path in re.findall(r"`(spec\.[\w.]+)`", ours):
            assert path in listed | inner or path == SAME_AS_PREFILL, path
