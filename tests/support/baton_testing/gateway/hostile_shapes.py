"""Schemas, patterns, grammars, tools and tool turns of somebody who means harm: mostly well formed, with one thing odd.

What is odd is found only behind the first look: in keywords, references, patterns, names, counts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

NAMES = (
    "get_weather",
    "a" * 64,
    "a" * 65,
    "",
    "x.y",
    "é",
    "\ud800",
    "functions.a",
    "</tool_call>",
    "a b",
    "0",
    "__proto__",
)
PATTERNS = (
    "a+", "(a+)+$", "(a|aa)*b", "a{1000}", "(a{100}){100}", "(((a{30}){30}){30}){30}", "a{0,4294967295}", "[", "(?=a)",
    "(?<!a)b", "\\1", "(?P<x>a)(?P=x)", "\\p{L}+", "\\ud800", "^$", "", "." * 9_000,
    "(" * 300 + ")" * 300, "[^\\x00-\\x7f]",
)  # fmt: skip
GRAMMARS = (
    'start: "a"', "start: start", "start: a\na: b\nb: a", 'start: "a"*' * 50, "start: /(a+)+$/", "", "start",
    "%import x",
    'start: ("a" | start)~100000', 'root ::= "a"', "start: " + "( " * 500 + '"a"' + " )" * 500, "%llguidance {}",
)  # fmt: skip
KEYWORDS = (
    "type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "enum", "const", "anyOf", "oneOf",
    "allOf", "not", "if", "then", "else", "pattern", "format", "minLength", "maxLength", "minimum", "maximum",
    "exclusiveMinimum", "multipleOf", "additionalProperties", "patternProperties", "propertyNames", "$ref", "$defs",
    "definitions", "$id", "$anchor", "$dynamicRef", "dependentRequired", "unevaluatedProperties", "minProperties",
    "uniqueItems", "contains", "x-guidance", "title", "default", "",
)  # fmt: skip
NUMBERS = (0, 1, -1, 3, 1.5, 1e308, 2**31, 2**63, 2**64, -(2**63), 10**30, True)
REFERENCES = (
    "#", "#/$defs/a", "#/$defs/missing", "http://127.0.0.1:1/x", "https://example.com/s", "file:///etc/passwd", "//x",
    "#a", "#/properties/a/properties/a", "#/%ff", "\ud800",
)  # fmt: skip
MOST_CHARS = 4 << 20


class HostileShapes:
    """Values for the fields that bind an answer, or bring tools and their results."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._makers: tuple[Callable[[], Any], ...] = (
            self._loop, self._deep, self._large, self._many_names, self._contradiction, self._any_keywords,
        )  # fmt: skip

    def schema(self) -> Any:
        return self._draw.choice(self._makers)()

    def for_chat(self) -> dict[str, Any]:
        """Fields of `/v1/chat/completions`."""
        makers: tuple[Callable[[], dict[str, Any]], ...] = (self._format, self._structured, self._guided, self._tools)
        return {
            name: value
            for _ in range(self._draw.choice((1, 1, 2)))
            for name, value in self._draw.choice(makers)().items()
        }

    def for_completions(self) -> dict[str, Any]:
        return self._draw.choice((self._format, self._structured, self._guided))()

    def for_messages(self) -> dict[str, Any]:
        """Fields of `/v1/messages`."""
        tools = self._repeated({"name": self._name(), "description": "x", "input_schema": self.schema()})
        choice = self._draw.choice(("auto", "any", "tool", "none", "", 1))
        return {"tools": tools, "tool_choice": {"type": choice, "name": self._name()}}

    def for_responses(self) -> dict[str, Any]:
        """Fields of `/v1/responses`."""
        if self._draw.random() < 0.5:
            kind = self._draw.choice(("json_schema", "json_object", "text", "x"))
            return {"text": {"format": {"type": kind, "name": self._name(), "schema": self.schema(), "strict": True}}}
        tools = self._repeated({"type": "function", "name": self._name(), "parameters": self.schema()})
        return {
            "tools": tools,
            "tool_choice": self._draw.choice(("required", {"type": "function", "name": self._name()})),
        }

    def turns(self, is_anthropic: bool) -> list[dict[str, Any]]:
        """A conversation in which tools were called, in an order that may be wrong."""
        name, call, arguments = self._name(), self._draw.choice(("c1", "", "\ud800", "c" * 5_000)), self._arguments()
        if is_anthropic:
            turns: list[dict[str, Any]] = [
                {"role": "assistant", "content": [{"type": "tool_use", "id": call, "name": name, "input": arguments}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": arguments}]},
            ]
        else:
            called = {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}
            turns = [
                {"role": "assistant", "content": None, "tool_calls": [called] * self._draw.choice((1, 1, 2, 200))},
                {"role": "tool", "tool_call_id": self._draw.choice((call, "other")), "content": arguments},
            ]
        turns = self._draw.sample(turns, self._draw.choice((1, 2, 2)))
        count = min(self._draw.choice((1, 1, 3, 100)), 1 + MOST_CHARS // len(json.dumps(turns)))
        return [{"role": "user", "content": "x"}, *turns * count]

    # Fields ----------------------------------------------------------------------------------------------------------

    def _format(self) -> dict[str, Any]:
        kind = self._draw.choice(
            ("json_schema", "json_schema", "json_schema", "json_object", "text", "grammar", "", None)
        )
        inner = {"name": self._name(), "schema": self.schema(), "strict": self._draw.choice((True, False, None, 1))}
        return {"response_format": {"type": kind, "json_schema": inner}}

    def _structured(self) -> dict[str, Any]:
        name, value = self._rule()
        return {"structured_outputs": {name: value} | (dict([self._rule()]) if self._draw.random() < 0.2 else {})}

    def _guided(self) -> dict[str, Any]:
        name, value = self._rule()
        return {f"guided_{name}": value}

    def _rule(self) -> tuple[str, Any]:
        match self._draw.randrange(6):
            case 0:
                return "regex", self._draw.choice(PATTERNS)
            case 1:
                return "grammar", self._draw.choice(GRAMMARS)
            case 2:
                return "choice", self._draw.choice(([], [""], ["a"] * 5_000, ["a", 1], list(PATTERNS), "a", ["\ud800"]))
            case 3:
                return "json", json.dumps(self.schema(), default=str)
            case 4:
                return self._draw.choice(
                    ("json_object", "structural_tag", "whitespace_pattern", "decoding_backend")
                ), True
            case _:
                return "json", self.schema()

    def _tools(self) -> dict[str, Any]:
        name = self._name()
        function = {"name": name, "description": "x", "parameters": self.schema(), "strict": self._draw.random() < 0.5}
        tool = {"type": self._draw.choice(("function", "function", "custom", "")), "function": function}
        named = {"type": "function", "function": {"name": self._draw.choice((name, "other"))}}
        choice = self._draw.choice(("auto", "none", "required", "required", named, named, "", {}))
        return {
            "tools": self._repeated(tool),
            "tool_choice": choice,
            "parallel_tool_calls": self._draw.choice((True, False, 1)),
        }

    def _repeated(self, tool: dict[str, Any]) -> list[dict[str, Any]]:
        """Never much more than what a body may have: making it would hold up whoever sends it."""
        count: int = self._draw.choice((0, 1, 1, 1, 2, 129, 1_000))
        return [tool] * min(count, 1 + MOST_CHARS // len(json.dumps(tool)))

    def _name(self) -> str:
        return self._draw.choice(NAMES)

    def _arguments(self) -> Any:
        return self._draw.choice(('{"a": 1}', "", "{", "[]", "1", '{"a": NaN}', "\ud800", "[" * 500, {"a": 1}, None, 7))

    # Schemas ---------------------------------------------------------------------------------------------------------

    def _loop(self) -> Any:
        reference = self._draw.choice(REFERENCES)
        inner = {"$ref": reference}
        return self._draw.choice(
            (
                inner,
                {"$defs": {"a": inner}, "$ref": "#/$defs/a"},
                {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
                {"type": "object", "properties": {"a": inner}, "required": ["a"]},
                {"$defs": {"a": {"anyOf": [inner, {"type": "null"}]}}, "type": "array", "items": {"$ref": "#/$defs/a"}},
            )
        )

    def _deep(self) -> Any:
        schema: Any = {"type": "integer"}
        wrap = self._draw.choice(("properties", "items", "anyOf", "not"))
        for _ in range(self._draw.choice((3, 30, 63, 64, 65, 200))):
            match wrap:
                case "properties":
                    schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
                case "anyOf":
                    schema = {"anyOf": [schema, {"type": "null"}]}
                case _:
                    schema = {wrap: schema}
        return schema

    def _large(self) -> Any:
        count = self._draw.choice((100, 1_000, 3_000, 20_000))
        match self._draw.randrange(3):
            case 0:
                return {"enum": [f"value {number}" for number in range(count)]}
            case 1:
                fields = {f"field{number}": {"type": "string", "maxLength": 9} for number in range(count)}
                return {"type": "object", "properties": fields, "required": list(fields)}
            case _:
                return {"type": "string", "minLength": count * 1_000, "pattern": self._draw.choice(PATTERNS)}

    def _many_names(self) -> Any:
        names = self._draw.sample(NAMES, 4)
        return {"type": "object", "properties": {name: {"pattern": self._draw.choice(PATTERNS)} for name in names}}

    def _contradiction(self) -> Any:
        return self._draw.choice(
            (
                {"enum": []},
                {"type": []},
                {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False},
                {"type": "integer", "minimum": 5, "maximum": 1},
                {"type": "string", "minLength": 9, "maxLength": 1},
                {"type": "array", "items": False, "minItems": 1},
                {"const": 1, "type": "string"},
                {"allOf": [{"type": "string"}, {"type": "integer"}]},
                {"not": {}},
                {"type": "integer", "multipleOf": 0},
                {"oneOf": [{"minimum": number} for number in range(100)]},
                False,
                [],
            )
        )

    def _any_keywords(self, depth: int = 0) -> Any:
        draw = self._draw
        schema: dict[str, Any] = {}
        for _ in range(draw.randrange(1, 5)):
            keyword = draw.choice(KEYWORDS)
            match draw.randrange(7):
                case 0:
                    schema[keyword] = draw.choice(NUMBERS)
                case 1:
                    schema[keyword] = draw.choice(
                        (*REFERENCES, *PATTERNS, *NAMES, "string", "date-time", "object", "integer")
                    )
                case 2:
                    schema[keyword] = [
                        self._any_keywords(depth + 1) if depth < 3 else {} for _ in range(draw.choice((0, 1, 3)))
                    ]
                case 3:
                    schema[keyword] = {draw.choice(NAMES): self._any_keywords(depth + 1) if depth < 3 else {}}
                case 4:
                    schema[keyword] = draw.choice((["string", "null"], ["a", "a"], [None], [draw.choice(NUMBERS)]))
                case _:
                    schema[keyword] = self._any_keywords(depth + 1) if depth < 3 else draw.choice((True, False, None))
        return schema


def bad_shapes(number: int) -> list[tuple[str, dict[str, Any]]]:
    """Definitions that are refused; `number` makes them new ones."""
    deep: dict[str, Any] = {"title": str(number)}
    for _ in range(70):
        deep = {"type": "object", "properties": {"a": deep}}
    tool = {"type": "function", "function": {"name": "f", "description": str(number), "parameters": {}}}
    schemas: list[tuple[str, Any]] = [
        ("schema over 64 kB", {"description": "x" * 70_000, "title": str(number)}),
        ("70 levels", deep),
        ("a circle of references", {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a", "title": str(number)}),
        ("a remote reference", {"$ref": f"http://127.0.0.1:1/{number}"}),
        ("an empty enum", {"enum": [], "title": str(number)}),
        ("a required field that may not be",
         {"type": "object", "properties": {}, "required": ["a"], "additionalProperties": False, "title": str(number)}),
        ("an unknown keyword", {"unevaluatedItems": {}, "title": str(number)}),
    ]  # fmt: skip
    formats = [
        (name, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}})
        for name, schema in schemas
    ]
    return [
        *formats,
        ("a pattern that blows up", {"guided_regex": f"((a{{1000}}){{1000}}){number}"}),
        ("1,000 tools", {"tools": [tool] * 1_000}),
        ("an odd name of a tool", {"tools": [{**tool, "function": {"name": f"é {number}"}}]}),
    ]
