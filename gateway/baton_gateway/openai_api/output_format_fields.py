"""Fields with an answer's format: OpenAI's `response_format`, vLLM's `structured_outputs`, and its older `guided_…`.

A request may have at most one. Clients of several servers at once repeat it under other names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from baton_gateway.errors import invalid, unsupported
from baton_gateway.openai_api.openai_fields import MAX_IGNORED_BYTES, Fields, wrong_type
from baton_gateway.structured_outputs.output_format import (
    MAX_DEFINITION_BYTES,
    FormatKind,
    OutputFormat,
    choice_format,
    json_format,
    text_format,
)

SCHEMA_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ANY_OBJECT = {"type": "object"}
_OLD_NAMES = {"guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar"}
"""Older names of the fields of `structured_outputs`."""


def read_output_format(fields: Fields) -> OutputFormat | None:
    """Read the format from a body's fields. Raises RefusedError."""
    formats = list(_formats(fields))
    if any(_definition(other) != _definition(formats[0]) for other in formats[1:]):
        names = " and ".join(f"'{output_format.field}'" for output_format in formats[:2])
        raise invalid(formats[1].field, f"{names} exclude each other: an answer has one format.")
    return formats[0] if formats else None


def _definition(output_format: OutputFormat) -> OutputFormat:
    """Return the format without the names of its fields."""
    schemas = tuple(msgspec.structs.replace(schema, field="") for schema in output_format.schemas)
    return msgspec.structs.replace(output_format, field="", schemas=schemas)


def check_may_end(field: str, ignore_eos: bool, min_tokens: int) -> None:
    """Check that an answer may end where its format ends. Raises RefusedError for options against that."""
    if ignore_eos:
        raise unsupported("ignore_eos", f"'{field}' says where the answer ends")
    if min_tokens:
        raise unsupported("min_tokens", f"'{field}' says where the answer ends")


def _formats(fields: Fields) -> Iterator[OutputFormat]:
    if (form := fields.take("response_format")) is not None:
        yield from _response_format(form)
    if (outputs := fields.take("structured_outputs")) is not None:
        if not isinstance(outputs, dict):
            raise wrong_type("structured_outputs", "an object")
        inner = Fields(outputs, "structured_outputs.")
        if inner.flag("json_object", False):
            yield json_format(_ANY_OBJECT, "structured_outputs.json_object")
        for name in _OLD_NAMES.values():
            if (value := inner.take(name)) is not None:
                yield _read_definition(name, value, f"structured_outputs.{name}")
        inner.end()
    fields.ignore("guided_decoding_backend", max_bytes=MAX_IGNORED_BYTES)
    for old, name in _OLD_NAMES.items():
        if (value := fields.take(old)) is not None:
            yield _read_definition(name, value, old)


def _response_format(form: Any) -> Iterator[OutputFormat]:
    if not isinstance(form, dict):
        raise wrong_type("response_format", "an object")
    fields = Fields(form, "response_format.")
    match fields.require("type"):
        case "text":
            pass
        case "json_object":
            yield json_format(_ANY_OBJECT, "response_format")
        case "json_schema":
            yield _json_schema(fields.require("json_schema"))
        case _:
            allowed = "'text', 'json_object' or 'json_schema'"
            raise invalid("response_format.type", f"'response_format.type' must be {allowed}.")
    fields.end()


def _json_schema(value: Any) -> OutputFormat:
    path = "response_format.json_schema"
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    name = fields.require("name")
    if not isinstance(name, str) or not SCHEMA_NAME.fullmatch(name):
        raise invalid(f"{path}.name", f"'{path}.name' must be 1 to 64 letters, digits, '_' or '-'.")
    fields.text("description", MAX_DEFINITION_BYTES)
    schema = fields.require("schema")
    is_strict = fields.flag("strict", False)
    fields.end()
    return json_format(schema, f"{path}.schema", is_strict)


def _read_definition(name: str, value: Any, field: str) -> OutputFormat:
    if name == "json":
        return json_format(_decode(value, field) if isinstance(value, str) else value, field)
    if name == "choice":
        if not isinstance(value, list) or any(not isinstance(choice, str) for choice in value):
            raise wrong_type(field, "a list of strings")
        return choice_format(value, field)
    if not isinstance(value, str):
        raise wrong_type(field, "a string")
    return text_format(FormatKind.REGEX if name == "regex" else FormatKind.LARK, value, field)


def _decode(text: str, field: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(field, f"'{field}' is a string that is not JSON: {error}.") from error
