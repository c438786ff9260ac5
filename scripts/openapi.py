"""Writes the gateway's OpenAPI document from the fields that its parsers really read.

The parsers run once over bodies that take every branch, with a `Fields` that records each field: name, type, bounds,
required or not. Fields that a parser reads raw (unions, lists) are described here with the parser's own bounds; one
without a description fails the run. A test sends bodies at and beyond every bound.

    python scripts/openapi.py          writes the document
    python scripts/openapi.py --check  fails when it is not what the parsers read
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import openapi_apis
import openapi_batches
from openapi_answers import ANSWERS, ERROR, METHODS, MODEL, PLAIN, REFUSALS, USAGE, Schema

from baton_gateway.answers.tool_use import ToolMode
from baton_gateway.http_api import tokenising
from baton_gateway.openai_api import (
    chat_messages,
    openai_fields,
    openai_types,
    output_format_fields,
    prompting_fields,
    tool_fields,
)
from baton_gateway.structured_outputs import output_format

DOCUMENT = Path(__file__).resolve().parent.parent / "gateway/baton_gateway/http_api/openapi.json"

TEXT = {"type": "string", "maxLength": openai_fields.MAX_TEXT_CHARS}
IDS = {
    "type": "array",
    "minItems": 1,
    "items": {"type": "integer", "minimum": 0, "maximum": openai_types.MAX_TOKEN_ID},
}
STOP = {"type": "string", "minLength": 1, "maxLength": openai_types.MAX_STOP_BYTES}
MESSAGES = {
    "type": "array",
    "minItems": 1,
    "maxItems": chat_messages.MAX_MESSAGES,
    "items": {"$ref": "#/components/schemas/Message"},
}
TOOL_NAME = {"type": "string", "pattern": f"^{tool_fields.TOOL_NAME.pattern}$"}
DEFINITION = {"type": ["string", "null"], "minLength": 1}
SCHEMA: Schema = {
    "anyOf": [{"type": ["object", "boolean"]}],
    "description": f"A JSON Schema of at most {output_format.MAX_DEFINITION_BYTES} bytes: docs/structured.md.",
}
OUTPUTS: dict[str, Schema] = {
    "json": SCHEMA | {"anyOf": [{"type": ["object", "boolean", "null"]}, {"type": "string"}]},
    "regex": DEFINITION | {"description": "The whole answer matches it."},
    "choice": {
        "type": ["array", "null"],
        "minItems": 1,
        "maxItems": output_format.MAX_CHOICES,
        "items": {"type": "string", "minLength": 1},
        "description": "The answer is one of these strings.",
    },
    "grammar": DEFINITION | {"description": "In Lark."},
}
RAW: dict[str, Schema] = {
    "model": {"type": "string", "maxLength": 253, "description": "A served name."},
    "messages": MESSAGES,
    "messages[].role": {"type": "string", "enum": sorted(chat_messages.ROLES)},
    "messages[].content": {
        "anyOf": [
            TEXT,
            {
                "type": "array",
                "maxItems": chat_messages.MAX_PARTS,
                "items": {"$ref": "#/components/schemas/Part"},
            },
            {"type": "null"},
        ],
        "description": "Null, absent or empty only in the message of an assistant or a tool.",
    },
    "messages[].tool_calls": {
        "type": ["array", "null"],
        "maxItems": tool_fields.MAX_TOOLS,
        "items": {"$ref": "#/components/schemas/ToolCall"},
        "description": "Of an assistant.",
    },
    "messages[].tool_call_id": {
        "type": "string",
        "maxLength": tool_fields.MAX_CALL_ID_CHARS,
        "description": "Of a tool, which needs it: the id of a call before.",
    },
    "messages[].tool_calls[].id": {"type": "string", "maxLength": tool_fields.MAX_CALL_ID_CHARS},
    "messages[].tool_calls[].type": {"enum": ["function", None]},
    "messages[].tool_calls[].function": {"$ref": "#/components/schemas/CalledFunction"},
    "messages[].tool_calls[].function.name": TOOL_NAME,
    "messages[].tool_calls[].function.arguments": {
        "anyOf": [TEXT, {"type": ["object", "null"]}],
        "description": "JSON text, or an object.",
    },
    "tools": {
        "type": ["array", "null"],
        "maxItems": tool_fields.MAX_TOOLS,
        "items": {"$ref": "#/components/schemas/Tool"},
        "description": f"At most {tool_fields.MAX_TOOLS_BYTES} bytes of JSON together; no name twice.",
    },
    "tools[].type": {
        "anyOf": [{"enum": ["function", None]}, {"type": "string"}],
        "description": "Tools of some other types are skipped.",
    },
    "tools[].function": {"$ref": "#/components/schemas/Function"},
    "tools[].function.name": TOOL_NAME,
    "tools[].function.parameters": {
        "type": ["object", "null"],
        "properties": {
            "type": {"anyOf": [{"enum": ["object", None]}, {"type": "array", "contains": {"const": "object"}}]}
        },
        "description": "JSON Schema of the arguments.",
    },
    "tool_choice": {
        "anyOf": [
            {"type": "string", "enum": list(ToolMode)},
            {"$ref": "#/components/schemas/NamedTool"},
            {"type": "null"},
        ]
    },
    "tool_choice.type": {"type": "string", "enum": ["function"]},
    "tool_choice.name": TOOL_NAME,
    "reasoning.max_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": prompting_fields.MAX_BUDGET},
    "thinking.budget_tokens": {"type": ["integer", "null"], "minimum": 0, "maximum": prompting_fields.MAX_BUDGET},
    "tool_choice.function": {"$ref": "#/components/schemas/NamedFunction"},
    "tool_choice.function.name": TOOL_NAME,
    "chat_template_kwargs": {
        "type": ["object", "null"],
        "description": f"Variables that the model's template reads; at most {prompting_fields.MAX_KWARGS_BYTES} bytes.",
    },
    "reasoning_effort": {"enum": [*prompting_fields.ReasoningEffort, None]},
    "enable_thinking": {"type": ["boolean", "string", "null"], "description": "Of `chat_template_kwargs`."},
    "reasoning": {"anyOf": [{"$ref": "#/components/schemas/OtherEffort"}, {"type": "null"}]},
    "thinking": {"anyOf": [{"$ref": "#/components/schemas/OtherThinking"}, {"type": "null"}]},
    **{key: {"enum": [*prompting_fields.THINKING_TYPES, None]} for key in ("reasoning.type", "thinking.type")},
    **{key: {"enum": [*prompting_fields.ReasoningEffort, None]} for key in ("reasoning.effort", "thinking.effort")},
    "messages[].content[].type": {
        "type": "string",
        "enum": ["text", "refusal", "input_text", "output_text", "thinking", "reasoning", "redacted_thinking"],
    },
    "messages[].content[].refusal": TEXT | {"description": "Of an assistant."},
    "messages[].content[].text": TEXT,
    "messages[].content[].thinking": {
        "anyOf": [TEXT, {"type": "array", "maxItems": chat_messages.MAX_PARTS, "items": {"type": "object"}}],
        "description": "Of an assistant; a list has parts of text.",
    },
    "prompt": {
        "anyOf": [
            TEXT,
            IDS,
            {
                "type": "array",
                "minItems": 1,
                "maxItems": openai_types.MAX_PROMPTS,
                "items": {"anyOf": [TEXT, IDS]},
            },
        ]
    },
    "stop": {
        "anyOf": [STOP, {"type": "array", "maxItems": openai_types.MAX_STOPS, "items": STOP}, {"type": "null"}],
        "description": "At most 256 bytes of UTF-8 each.",
    },
    "stop_token_ids": {
        "type": ["array", "null"],
        "maxItems": openai_types.MAX_STOP_IDS,
        "items": IDS["items"],
    },
    "logit_bias": {
        "type": ["object", "null"],
        "maxProperties": openai_types.MAX_LOGIT_BIAS,
        "propertyNames": {"pattern": "^[0-9]{1,8}$"},
        "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
    },
    "response_format": {"anyOf": [{"$ref": "#/components/schemas/AnswerFormat"}, {"type": "null"}]},
    "response_format.type": {"type": "string", "enum": ["text", "json_object", "json_schema"]},
    "response_format.json_schema": {
        "$ref": "#/components/schemas/NamedSchema",
        "description": "With the type `json_schema`, which needs it.",
    },
    "response_format.json_schema.name": {"type": "string", "pattern": f"^{output_format_fields.SCHEMA_NAME.pattern}$"},
    "response_format.json_schema.schema": SCHEMA,
    "structured_outputs": {
        "anyOf": [{"$ref": "#/components/schemas/StructuredOutputs"}, {"type": "null"}],
        "description": "One of its fields.",
    },
    **{f"structured_outputs.{name}": schema for name, schema in OUTPUTS.items()},
    **{f"guided_{name}": schema for name, schema in OUTPUTS.items()},
    "stream_options": {"anyOf": [{"$ref": "#/components/schemas/StreamOptions"}, {"type": "null"}]},
    "tokens": IDS,
    **openapi_apis.PRIORITY,
}
NAMES = {"messages[].": "Message", "messages[].content[].": "Part", "stream_options.": "StreamOptions",
    "response_format.": "AnswerFormat", "response_format.json_schema.": "NamedSchema",
    "structured_outputs.": "StructuredOutputs",
    "messages[].tool_calls[].": "ToolCall", "messages[].tool_calls[].function.": "CalledFunction", "tools[].": "Tool",
    "tools[].function.": "Function", "tool_choice.": "NamedTool", "tool_choice.function.": "NamedFunction",
    "reasoning.": "OtherEffort", "thinking.": "OtherThinking"}  # fmt: skip
"""Objects within a body: how they are called in the document."""


class UnknownRawFieldError(Exception):
    """The parser takes a field raw that this script does not describe."""


class Recorder(openai_fields.Fields):
    """Reads like `Fields` and notes down what is asked."""

    objects: dict[str, Schema]
    required: dict[str, list[list[str]]]
    """The fields that each object at a place had to have."""
    raw: Mapping[str, Schema]
    """Descriptions of what is taken raw, by place and name."""

    def __init__(self, raw: dict[str, Any], path: str = "") -> None:
        super().__init__(raw, path)
        self._place = re.sub(r"\[\d+\]", "[]", path)
        empty: Schema = {"type": "object", "properties": {}, "additionalProperties": False}
        self._schema = self.objects.setdefault(self._place, empty)
        self._required: list[str] = []
        self.required.setdefault(self._place, []).append(self._required)

    def _note(self, field: str, schema: Schema) -> None:
        self._schema["properties"].setdefault(field, schema)

    def take(self, field: str) -> Any:
        if field not in self._schema["properties"]:
            if self._place + field not in self.raw:
                raise UnknownRawFieldError(f"{self._place}{field}: describe it in RAW")
            self._note(field, self.raw[self._place + field])
        return super().take(field)

    def require(self, field: str) -> Any:
        self._required.append(field)
        return super().require(field)

    def text(self, field: str, max_chars: int, value: Any = None) -> str | None:
        self._note(field, {"type": ["string", "null"], "maxLength": max_chars})
        return super().text(field, max_chars, value)

    def integer(self, field: str, low: int, high: int) -> int | None:
        self._note(field, {"type": ["integer", "null"], "minimum": low, "maximum": high})
        return super().integer(field, low, high)

    def number(self, field: str, low: float, high: float, above_low: bool = False) -> float | None:
        least = {"exclusiveMinimum" if above_low else "minimum": low}
        self._note(field, {"type": ["number", "null"], **least, "maximum": high})
        return super().number(field, low, high, above_low)

    def flag(self, field: str, default: bool) -> bool:
        self._note(field, {"type": ["boolean", "null"]})
        return super().flag(field, default)

    def refuse(self, field: str, reason: str, harmless: Collection[Any] = ()) -> None:
        self._note(field, {"enum": [*harmless, None], "description": f"Not supported: {reason}."})
        super().refuse(field, reason, harmless)

    def ignore(self, *fields: str, max_bytes: int) -> None:
        for field in fields:
            text = f"Accepted without effect; at most {max_bytes} bytes of JSON for all such fields together."
            self._note(field, {"description": text})
        super().ignore(*fields, max_bytes=max_bytes)


MODULES = (chat_messages, openai_types, prompting_fields, output_format_fields, tokenising, tool_fields)
"""Whose parsers read bodies of chats, completions and tokens."""


@contextmanager
def recording(modules: Iterable[ModuleType], raw: Mapping[str, Schema]) -> Iterator[dict[str, Schema]]:
    """While it lasts the parsers' objects note down into what is given, by their place in the body. Complete in the
    end: a field is required if every object at its place needed it.
    """
    objects: dict[str, Schema] = {}
    required: dict[str, list[list[str]]] = {}
    recorder = type("Recorder", (Recorder,), {"objects": objects, "required": required, "raw": raw})
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(mock.patch.object(module, "Fields", recorder))
        yield objects
    for place, schema in objects.items():
        first, *others = required[place]
        if always := [field for field in dict.fromkeys(first) if all(field in other for other in others)]:
            schema["required"] = always
        objects[place] = _with_other_types(schema)


def _with_other_types(schema: Schema) -> Schema:
    """Allow any fields in an object whose type is not among those that are listed, if its type may be any string."""
    match schema["properties"].get("type"):
        case {"anyOf": [{"enum": listed}, {"type": "string"}], **rest}:
            described = schema | {"properties": schema["properties"] | {"type": {"enum": listed, **rest}}}
            names = [kind for kind in listed if kind is not None]
            other: Schema = {"type": "string", "not": {"enum": names}}
            return {"anyOf": [described, {"type": "object", "required": ["type"], "properties": {"type": other}}]}
    return schema


PARTS = [
    {"type": "text", "text": "x"},
    {"type": "refusal", "refusal": "x"},
    {"type": "thinking", "thinking": "x"},
    {"type": "reasoning", "text": "x"},
    {"type": "redacted_thinking", "data": "x"},
]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "assistant", "content": PARTS, "tool_calls": [CALL]},
    {"role": "tool", "content": "x", "tool_call_id": "c"},
]
SHAPES: tuple[dict[str, Any], ...] = (
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
    {"response_format": {"type": "text"}},
    {"structured_outputs": {"choice": ["a"]}},
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
TOLD = {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}}
BODIES: dict[str, tuple[str, Callable[[dict[str, Any]], Any], tuple[dict[str, Any], ...]]] = {
    "/v1/chat/completions": (
        "ChatRequest",
        openai_types.parse_chat,
        (
            {"model": "x", "messages": CHAT, "stream": True, "stream_options": {}, "reasoning": {}, "thinking": {}}
            | TOLD,
            *({"model": "x", "messages": CHAT} | shape for shape in SHAPES),
        ),
    ),
    "/v1/completions": (
        "CompletionRequest",
        openai_types.parse_completion,
        # The widest bounds first: with `echo` nothing need be generated.
        (
            {"model": "x", "prompt": "x", "echo": True, "stream": True, "stream_options": {}},
            *({"model": "x", "prompt": "x"} | shape for shape in SHAPES),
        ),
    ),
    "/tokenize": (
        "TokenizeRequest",
        tokenising.parse_tokenize,
        ({"prompt": "x"}, {"messages": CHAT, "reasoning": {}, "thinking": {}} | TOLD),
    ),
    "/detokenize": ("DetokenizeRequest", tokenising.parse_detokenize, ({"tokens": [1]},)),
    **openapi_apis.BODIES,
}
"""By path: the body's name, its parser, and bodies that together take every branch."""

IGNORED: Schema = {
    "description": "Fields of the body that this gateway does not know, where it is configured to ignore them.",
    "schema": {"type": "string"},
}
NAMES_IGNORED = ("/v1/chat/completions", "/v1/completions", *openapi_apis.BODIES)
ALL_ANSWERS = ANSWERS | openapi_apis.ANSWERS


def document() -> Schema:
    """The whole document."""
    schemas: dict[str, Schema] = {"Error": ERROR, "Usage": USAGE, "Model": MODEL}
    schemas["MessageError"] = openapi_apis.MESSAGE_ERROR
    bodies = {}
    for path, (name, parse, samples) in BODIES.items():
        own = openapi_apis.OWN.get(name)
        modules, raw, names = (MODULES, RAW, NAMES) if own is None else (own.modules, own.raw, own.names)
        with recording(modules, raw) as objects:
            for sample in samples:
                parse(sample)
        for place, schema in objects.items():
            schemas[names[place] if place else name] = schema
        bodies[path] = name
    schemas |= openapi_batches.SCHEMAS
    paths = {path: _operations(path, bodies.get(path)) for path in {*BODIES, *ALL_ANSWERS, *PLAIN}}
    paths = dict(sorted({**paths, **openapi_batches.paths()}.items()))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Baton",
            "version": "v1",
            "description": "OpenAI's chat and text completions as far as listed, and what clients of vLLM ask for.",
        },
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def _operations(path: str, body: str | None) -> Schema:
    methods = ("post",) if body is not None else METHODS.get(path, ("get",))
    item: Schema = {method: _operation(path, method, body) for method in methods}
    if "{id}" in path:
        item["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return item


def _operation(path: str, method: str, body: str | None) -> Schema:
    operation: Schema = {"operationId": f"{method} {path}", "responses": {"200": _good(path)}}
    if path in NAMES_IGNORED:
        operation["responses"]["200"]["headers"] = {"X-Baton-Ignored": IGNORED}
    if path in PLAIN:
        operation["responses"]["503"] = {"description": "not now", "content": {"text/plain": {}}}
        return operation
    if body is not None:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
        operation["requestBody"] = {"required": True, "content": content}
    wanted = REFUSALS if body is not None else {code: REFUSALS[code] for code in ("400", "401", "404", "500")}
    if path in ("/requests", "/ui/data.json"):
        wanted = {
            "400": "a malformed query",
            "401": REFUSALS["401"],
            "403": "only the operator",
            "500": REFUSALS["500"],
        }
    form = openapi_apis.ERRORS.get(path, "Error")
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{form}"}}}
    for status, text in wanted.items():
        operation["responses"][status] = {"description": text, "content": error}
    return operation


def _good(path: str) -> Schema:
    if path in PLAIN:
        return {"description": "well", "content": {"text/plain": {}}}
    content: Schema = {"application/json": {"schema": ALL_ANSWERS[path]}}
    if path in ("/v1/chat/completions", "/v1/completions", *openapi_apis.STREAMED):
        content["text/event-stream"] = {}
    return {"description": "the answer", "content": content}


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the gateway's OpenAPI document")
    parser.add_argument("--check", action="store_true", help="fail when the file is not what the parsers read")
    text = json.dumps(document(), indent=1, ensure_ascii=False) + "\n"
    if not parser.parse_args().check:
        DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    if DOCUMENT.exists() and DOCUMENT.read_text(encoding="utf-8") == text:
        return 0
    print(f"{DOCUMENT.name} is not what the parsers read: run `make format`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
