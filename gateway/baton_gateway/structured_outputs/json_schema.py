"""A client's JSON Schema to one that the grammar compiler understands wholly, or a refusal that names the place. Pure.

What comes out has the keywords of `schema_keywords.ENFORCED` alone. References lead to `$defs` of its own, patterns are
in the compiler's dialect, and every number is one that the compiler can count with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from baton_gateway.structured_outputs.format_errors import refused, step
from baton_gateway.structured_outputs.pattern import PatternError, check_writable, common_pattern
from baton_gateway.structured_outputs.schema_closure import PartError, check_ends, check_patterns, resolve_one_of
from baton_gateway.structured_outputs.schema_keywords import (
    ENFORCED,
    FORMATS,
    NO_SAY,
    REFUSED,
    TYPES,
    NameRule,
    name_rule,
)

MAX_DEPTH = 64
MAX_SCHEMAS = 20_000
"""Schemas within a schema; what a reference leads to counts again."""
MAX_NUMBER = 1 << 53
"""Beyond it not every integer is a JSON number of its own. The compiler fails for larger bounds."""
MAX_NUMBER_DIGITS = 17
MAX_MULTIPLE = 10_000
"""Of all `multipleOf` together: their least common multiple without its decimal point."""
MAX_NAME_PATTERNS = 16
"""`patternProperties` of one object: the compiler compares each with each."""


Schema = dict[str, Any] | bool
_COUNTS = frozenset(["minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"])
_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_PAIRS = (("minItems", "maxItems"), ("minLength", "maxLength"), ("minProperties", "maxProperties"))


class CheckedSchema:
    """The outcome: a schema for the compiler, and where each part of it stands in the client's."""

    def __init__(self, schema: dict[str, Any], pointers: dict[int, str]) -> None:
        self.schema = schema
        self._pointers = pointers

    def pointer(self, part: Any) -> str:
        """Where an object within `schema` comes from; empty for what is nobody's."""
        return self._pointers.get(id(part), "")


def check_schema(schema: Any, field: str, is_strict: bool) -> CheckedSchema:
    """Raises RefusedError. `is_strict`: a format that is not known is refused, and else says nothing."""
    reader = _SchemaReader(schema, field, is_strict)
    return CheckedSchema(reader.read(), reader.pointers)


class _SchemaReader:
    def __init__(self, root: Any, field: str, is_strict: bool) -> None:
        self.pointers: dict[int, str] = {}
        self._root = root
        self._field = field
        self._is_strict = is_strict
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema] = {}
        self._left = MAX_SCHEMAS
        self._multiple = 1
        self._readers: dict[str, Callable[[Any, str, int], Any]] = {
            "const": self._const,
            "enum": self._enum,
            "$ref": self._reference,
            "pattern": self._pattern,
            "multipleOf": self._multiple_of,
            "properties": self._properties,
            "patternProperties": self._pattern_properties,
            "required": self._required,
            "additionalProperties": self._schema,
            "prefixItems": self._schemas,
            "allOf": self._schemas,
            "anyOf": self._schemas,
            "oneOf": self._schemas,
            **dict.fromkeys(_COUNTS, self._count),
            **dict.fromkeys(_BOUNDS, self._bound),
        }

    def read(self) -> dict[str, Any]:
        _check_depth(self._root, self._field)
        root = self._schema(self._root, "", 0)
        if root is False:
            raise refused(self._field, "", "no answer can be valid")
        queue = list(self._names)
        for target in queue:  # grows while it is read
            self._definitions[self._names[target]] = self._schema(self._target(target), target, 0)
            queue.extend(list(self._names)[len(queue) :])
        found: dict[str, Any] = {} if root is True else root
        if self._definitions:
            found["$defs"] = self._definitions
        try:
            check_ends(found, self._definitions)
            check_patterns(found, self._definitions)
            resolve_one_of(found, self._definitions)
        except PartError as error:
            pointer = self.pointers.get(id(error.part), "")
            raise self._refuse(step(pointer, error.keyword) if error.keyword else pointer, str(error)) from error
        return found

    def _refuse(self, pointer: str, reason: str) -> Exception:
        return refused(self._field, pointer, reason)

    # One schema -------------------------------------------------------------------------------------------------------

    def _schema(self, value: Any, pointer: str, depth: int) -> Schema:
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise self._refuse(pointer, "a schema must be an object or a boolean")
        self._left -= 1
        if self._left < 0:
            raise self._refuse(pointer, f"with its references the schema has more than {MAX_SCHEMAS} parts")
        if pointer and _is_anything(value.get("not")):
            return False  # how zod writes what may never be
        found: dict[str, Any] = {}
        self.pointers[id(found)] = pointer
        for keyword, content in value.items():
            self._keyword(found, value, keyword, content, step(pointer, keyword), depth + 1)
        if "propertyNames" in value and (rule := name_rule(value["propertyNames"])) is not None:
            self._bind_names(found, rule, pointer)
        self._check_together(found, pointer)
        return found

    def _keyword(  # noqa: C901
        self, found: dict[str, Any], schema: dict[str, Any], keyword: str, content: Any, place: str, depth: int
    ) -> None:
        if keyword in NO_SAY or (keyword.startswith("x-") and keyword != "x-guidance"):
            return
        if keyword == "$id" and depth == 1 and schema is self._root:
            return
        if keyword == "propertyNames" and name_rule(content) is not None:
            return  # see `_bind_names`, which needs what stands beside it
        if keyword not in ENFORCED:
            raise self._refuse(place, f"this keyword is not supported: {REFUSED.get(keyword, 'it is not known')}")
        match keyword:
            case "format":
                self._format(found, content, place)
            case "items" if isinstance(content, list):
                found["prefixItems"] = self._schemas(content, place, depth) if content else []
                if "additionalItems" in schema:
                    rest = schema["additionalItems"]
                    found["items"] = self._schema(rest, step(place.rpartition("/")[0], "additionalItems"), depth)
            case "items":
                found["items"] = self._schema(content, place, depth)
            case "additionalItems":
                pass  # read beside a list of `items`; without one it has no say
            case "type":
                found["type"] = self._types(content, place, depth)
                if schema.get("nullable") is True:
                    found["type"] = _with_null(found["type"])
            case "nullable":
                if not isinstance(content, bool):
                    raise self._refuse(place, "it must be true or false")
                if content and "type" not in schema:
                    raise self._refuse(place, "it has a say beside 'type' alone; write 'anyOf' with the type 'null'")
            case "uniqueItems":
                if content is not False:
                    raise self._refuse(place, "this keyword is not supported: no grammar can remember all items")
            case "pattern" if "pattern" in found:  # a format's
                _all_of(found).append({"pattern": self._pattern(content, place, depth)})
            case _:
                found[keyword] = self._readers[keyword](content, place, depth)

    def _bind_names(self, found: dict[str, Any], rule: NameRule, pointer: str) -> None:
        """Names of `propertyNames` become properties, of which nothing else is allowed; a pattern likewise."""
        place = step(pointer, "propertyNames")
        if rule.names is None and rule.pattern is None:
            return
        if "patternProperties" in found or (rule.pattern is not None and "properties" in found):
            raise self._refuse(place, "beside other keywords of names it is not supported: write them out")
        others = found.get("additionalProperties", True)
        found["additionalProperties"] = False
        if rule.pattern is not None:
            found["patternProperties"] = {self._pattern(rule.pattern, step(place, "pattern"), 0): others}
            return
        if isinstance(others, dict):  # once, however many names have it
            target = step(pointer, "additionalProperties")
            others = {"$ref": f"#/$defs/{self._names.setdefault(target, f'd{len(self._names)}')}"}
        own, names = found.get("properties", {}), dict.fromkeys(rule.names or ())
        ordered = (*(name for name in own if name in names), *(name for name in names if name not in own))
        found["properties"] = {self._text(name, place): own.get(name, others) for name in ordered}

    def _check_together(self, found: dict[str, Any], pointer: str) -> None:
        for low, high in _PAIRS:
            if found.get(low, 0) > found.get(high, math.inf):
                raise self._refuse(step(pointer, low), f"no value can be valid: it is larger than '{high}'")
        required = found.get("required", ())
        if not required and "required" in found:
            del found["required"]
        least = found.get("minProperties", 0)
        if least <= len(required):
            found.pop("minProperties", None)
        elif least > 1:
            reason = "more than 1 needs as many names in 'required': a grammar cannot tell a name from one before it"
            raise self._refuse(step(pointer, "minProperties"), reason)
        if found.get("type") == "object":
            self._check_required(found, required, pointer)

    def _check_required(self, found: dict[str, Any], required: tuple[str, ...] | list[str], pointer: str) -> None:
        properties = found.get("properties", {})
        others = True if found.get("patternProperties") else found.get("additionalProperties", True)
        for place, name in enumerate(required):
            if properties.get(name, others) is False:
                reason = "no value can be valid: this name is required and not allowed"
                raise self._refuse(step(step(pointer, "required"), place), reason)

    # Keywords ---------------------------------------------------------------------------------------------------------

    def _types(self, value: Any, pointer: str, _depth: int) -> Any:
        types = value if isinstance(value, list) else [value]
        if not types or any(each not in TYPES for each in types if isinstance(each, str)):
            raise self._refuse(pointer, f"it must be one or several of {', '.join(TYPES)}")
        if any(not isinstance(each, str) for each in types) or len(set(types)) < len(types):
            raise self._refuse(pointer, "it must be a type or a list of different types")
        return value if len(types) > 1 else types[0]

    def _const(self, value: Any, pointer: str, _depth: int) -> Any:
        match value:
            case bool() | None:
                return value
            case int() | float():
                return self._number(value, pointer)
            case str():
                return self._text(value, pointer)
            case list():
                return [self._const(each, step(pointer, place), 0) for place, each in enumerate(value)]
            case _:
                return {
                    self._text(key, pointer): self._const(each, step(pointer, key), 0) for key, each in value.items()
                }

    def _enum(self, value: Any, pointer: str, _depth: int) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self._refuse(pointer, "it must be a list of at least one value")
        return [self._const(each, step(pointer, place), 0) for place, each in enumerate(value)]

    def _text(self, text: str, pointer: str) -> str:
        if (problem := check_writable(text)) is not None:
            raise self._refuse(pointer, problem)
        return text

    def _number(self, value: Any, pointer: str) -> int | float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._refuse(pointer, "it must be a number")
        if abs(value) > MAX_NUMBER:
            raise self._refuse(pointer, f"numbers beyond ±{MAX_NUMBER} are not available")
        if value == int(value):
            return int(value)
        _, digits, exponent = Decimal(repr(value)).as_tuple()
        assert isinstance(exponent, int)
        if len(digits) > MAX_NUMBER_DIGITS or exponent < -MAX_NUMBER_DIGITS:
            raise self._refuse(pointer, f"a number may have {MAX_NUMBER_DIGITS} digits")
        return value

    def _bound(self, value: Any, pointer: str, _depth: int) -> int | float:
        return self._number(value, pointer)

    def _multiple_of(self, value: Any, pointer: str, _depth: int) -> int | float:
        number = self._number(value, pointer)
        if number <= 0:
            raise self._refuse(pointer, "it must be above 0")
        scaled = Decimal(repr(number)).normalize()
        coefficient = int("".join(map(str, scaled.as_tuple().digits)))
        self._multiple = math.lcm(self._multiple, coefficient)
        if self._multiple > MAX_MULTIPLE:
            reason = f"with the schema's other multiples it has a least common multiple above {MAX_MULTIPLE}"
            raise self._refuse(pointer, reason)
        return number

    def _count(self, value: Any, pointer: str, _depth: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1 or value < 0:
            raise self._refuse(pointer, "it must be an integer of 0 or more")
        if value > MAX_NUMBER:
            raise self._refuse(pointer, f"it must be at most {MAX_NUMBER}")
        return int(value)

    def _pattern(self, value: Any, pointer: str, _depth: int) -> str:
        if not isinstance(value, str):
            raise self._refuse(pointer, "it must be a string")
        try:
            return common_pattern(value)
        except PatternError as error:
            raise self._refuse(pointer, str(error)) from error

    def _format(self, found: dict[str, Any], value: Any, pointer: str) -> None:
        if not isinstance(value, str):
            raise self._refuse(pointer, "it must be a string")
        if value not in FORMATS:
            if self._is_strict:
                raise self._refuse(pointer, f"'strict' has these formats: {', '.join(FORMATS)}")
        elif (pattern := FORMATS[value]) is None:
            found["format"] = value
        elif "pattern" in found:
            _all_of(found).append({"pattern": pattern})
        else:
            found["pattern"] = pattern

    def _schemas(self, value: Any, pointer: str, depth: int) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise self._refuse(pointer, "it must be a list of at least one schema")
        return [self._schema(each, step(pointer, place), depth) for place, each in enumerate(value)]

    def _properties(self, value: Any, pointer: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise self._refuse(pointer, "it must be an object of schemas")
        return {
            self._text(name, step(pointer, name)): self._schema(each, step(pointer, name), depth)
            for name, each in value.items()
        }

    def _pattern_properties(self, value: Any, pointer: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise self._refuse(pointer, "it must be an object of schemas")
        if len(value) > MAX_NAME_PATTERNS:
            raise self._refuse(pointer, f"it may have at most {MAX_NAME_PATTERNS} patterns")
        return {
            self._pattern(name, step(pointer, name), depth): self._schema(each, step(pointer, name), depth)
            for name, each in value.items()
        }

    def _required(self, value: Any, pointer: str, _depth: int) -> list[str]:
        if not isinstance(value, list) or any(not isinstance(each, str) for each in value):
            raise self._refuse(pointer, "it must be a list of names")
        if len(set(value)) < len(value):
            raise self._refuse(pointer, "it names a property twice")
        return [self._text(each, step(pointer, place)) for place, each in enumerate(value)]

    # References -------------------------------------------------------------------------------------------------------

    def _reference(self, value: Any, pointer: str, _depth: int) -> str:
        if not isinstance(value, str):
            raise self._refuse(pointer, "it must be a string")
        if value != "#" and not value.startswith("#/"):
            raise self._refuse(pointer, "only references within this schema are followed: '#' or '#/…'")
        target = unquote(value[1:])
        try:
            self._target(target)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise self._refuse(pointer, "it leads to nothing in this schema") from error
        name = self._names.setdefault(target, f"d{len(self._names)}")
        return f"#/$defs/{name}"

    def _target(self, pointer: str) -> Any:
        found = self._root
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            found = found[int(key)] if isinstance(found, list) else found[key]
        return found


def _is_anything(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and not schema.keys() - NO_SAY)


def _with_null(types: Any) -> Any:
    several = types if isinstance(types, list) else [types]
    return types if "null" in several else [*several, "null"]


def _all_of(found: dict[str, Any]) -> list[Any]:
    several: list[Any] = found.setdefault("allOf", [])
    return several


def _check_depth(value: Any, field: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            each
            for part in level
            if isinstance(part, dict | list)
            for each in (part.values() if isinstance(part, dict) else part)
        ]
        if not level:
            return
    raise refused(field, "", f"it is nested more than {MAX_DEPTH} deep")
