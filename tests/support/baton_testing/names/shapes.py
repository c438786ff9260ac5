"""Names in the shapes of documents: declared types, JSON and JSON Schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec.inspect as mi


def fields(kind: mi.Type, path: str) -> Iterator[str]:
    """Paths of the fields of a type as they are encoded."""
    match kind:
        case mi.StructType(array_like=True, fields=inner):
            for place, field in enumerate(inner):
                yield f"{path}[{place}] {field.encode_name}"
                yield from fields(field.type, f"{path}[{place}]")
        case mi.StructType(fields=inner) | mi.DataclassType(fields=inner):
            for field in inner:
                yield f"{path}.{field.encode_name}"
                yield from fields(field.type, f"{path}.{field.encode_name}")
        case mi.UnionType(types=types) | mi.TupleType(item_types=types):
            for inner_type in types:
                yield from fields(inner_type, path)
        case mi.VarTupleType(item_type=item) | mi.ListType(item_type=item) | mi.DictType(value_type=item):
            yield from fields(item, f"{path}[]")
        case mi.EnumType(cls=cls):
            yield from (f"{path} = {member.value}" for member in cls)


def json_paths(value: object, path: str) -> Iterator[str]:
    """Paths of all that is in a document."""
    match value:
        case Mapping():
            for key, inner in value.items():
                yield f"{path}.{key}"
                yield from json_paths(inner, f"{path}.{key}")
        case list():
            for inner in value:
                yield from json_paths(inner, f"{path}[]")


def schema_paths(schema: object, path: str) -> Iterator[str]:
    """Paths of the properties of a JSON Schema, and the values that they are restricted to."""
    if not isinstance(schema, Mapping):
        return
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}.{name}"
        yield from schema_paths(inner, f"{path}.{name}")
    for word, suffix in (("items", "[]"), ("additionalProperties", ".*")):
        yield from schema_paths(schema.get(word), path + suffix)
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for inner in schema.get(word, ()):
            yield from schema_paths(inner, path)
    allowed = [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]
    yield from (f"{path} = {value}" for value in allowed)
