"""Translates a client's JSON Schema into one that the grammar compiler enforces wholly, or refuses it by place. Pure.

The result has only keywords of `schema_keywords.ENFORCED`. Its references lead to its own `$defs`, its patterns are in
the compiler's dialect, and the compiler can represent each of its numbers.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from baton_gateway.structured_outputs.format_errors import schema_error, step
from baton_gateway.structured_outputs.look_ahead import split_look_aheads
from baton_gateway.structured_outputs.pattern import LookAroundError, PatternError, find_unwritable, translate_pattern
from baton_gateway.structured_outputs.schema_closure import PartError, check_finite, check_patterns, resolve_one_of
from baton_gateway.structured_outputs.schema_keywords import (
    ANNOTATIONS,
    ENFORCED,
    FORMATS,
    REFUSED,
    TYPES,
    NameRule,
    read_name_rule,
)
from baton_gateway.structured_outputs.unique_items import list_unique

MAX_DEPTH = 64
MAX_SCHEMAS = 20_000
"""The most schemas within a schema; the target of a reference counts again."""
MAX_NUMBER = 1 << 53
"""Beyond this, doubles cannot tell all integers apart, and the compiler fails for larger bounds."""
MAX_NUMBER_DIGITS = 17
MAX_MULTIPLE = 10_000
"""The largest least common multiple of all `multipleOf`, without its decimal point."""
MAX_NAME_PATTERNS = 16
"""The most `patternProperties` of one object: the compiler compares them pairwise."""


Schema = dict[str, Any] | bool
_COUNTS = frozenset(["minProperties", "maxProperties", "minItems", "maxItems", "minLength", "maxLength"])
_BOUNDS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"])
_PAIRS = (("minItems", "maxItems"), ("minLength", "maxLength"), ("minProperties", "maxProperties"))


class CheckedSchema:
    """A schema for the compiler, with the place of each of its parts in the client's schema."""

    def __init__(self, schema: dict[str, Any], pointers: dict[int, str], ignored: tuple[str, ...] = ()) -> None:
        self.schema = schema
        self._pointers = pointers
        self.ignored = ignored
        """Pointers of the keywords that are not enforced."""

    def pointer(self, part: Any) -> str:
        """Return the client's pointer for a part of `schema`; empty for a part that the gateway added."""
        return self._pointers.get(id(part), "")


class Enforcement(enum.IntEnum):
    """How much of a client's schema must be enforced."""

    SUPPORTED = 0
    """A keyword that cannot be enforced is an annotation: a tool without `strict` may have fields that no call uses."""
    USUAL = 1
    """As STRICT, but formats, patterns and `uniqueItems` that cannot be enforced are annotations."""
    STRICT = 2
    """Everything, or the schema is refused."""


def check_schema(schema: Any, field: str, demand: Enforcement) -> CheckedSchema:
    """Translate a client's schema. Raises RefusedError for what must be enforced and cannot be."""
    reader = _SchemaReader(schema, field, demand)
    return CheckedSchema(reader.read(), reader.pointers, tuple(reader.ignored))


class _SchemaReader:
    """Reads one client's schema from its root, and the targets of its references."""

    def __init__(self, root: Any, field: str, demand: Enforcement) -> None:
        self.pointers: dict[int, str] = {}
        self.ignored: list[str] = []
        self._root = root
        self._field = field
        self._demand = demand
        self._names: dict[str, str] = {}
        self._definitions: dict[str, Schema] = {}
        self._schemas_left = MAX_SCHEMAS
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
            raise schema_error(self._field, "", "no answer can be valid")
        queue = list(self._names)
        for target in queue:  # grows while it is read
            self._definitions[self._names[target]] = self._schema(self._target(target), target, 0)
            queue.extend(list(self._names)[len(queue) :])
        result: dict[str, Any] = {} if root is True else root
        if self._definitions:
            result["$defs"] = self._definitions
        try:
            check_finite(result, self._definitions)
            check_patterns(result, self._definitions)
            self.ignored += map(
                self._place, resolve_one_of(result, self._definitions, self._demand is Enforcement.SUPPORTED)
            )
        except PartError as error:
            raise self._refuse(self._place(error), str(error)) from error
        return result

    def _place(self, error: PartError) -> str:
        pointer = self.pointers.get(id(error.part), "")
        return step(pointer, error.keyword) if error.keyword else pointer

    def _leave_out(self, pointer: str, reason: str, below: Enforcement = Enforcement.USUAL) -> None:
        """Leave a keyword out if less than this is demanded. Raises RefusedError otherwise."""
        if self._demand >= below:
            raise self._refuse(pointer, reason)
        self.ignored.append(pointer)

    def _refuse(self, pointer: str, reason: str) -> Exception:
        return schema_error(self._field, pointer, reason)

    # One schema -------------------------------------------------------------------------------------------------------

    def _schema(self, value: Any, pointer: str, depth: int) -> Schema:
        if isinstance(value, bool):
            return value
        if not isinstance(value, dict):
            raise self._refuse(pointer, "a schema must be an object or a boolean")
        self._schemas_left -= 1
        if self._schemas_left < 0:
            raise self._refuse(pointer, f"with its references the schema has more than {MAX_SCHEMAS} parts")
        if pointer and _accepts_anything(value.get("not")):
            return False  # zod writes `not: {}` for a value that may never occur
        result: dict[str, Any] = {}
        self.pointers[id(result)] = pointer
        for keyword, content in value.items():
            self._read_keyword(result, value, keyword, content, step(pointer, keyword), depth + 1)
        if "propertyNames" in value and (rule := read_name_rule(value["propertyNames"])) is not None:
            self._restrict_names(result, rule, pointer)
        self._check_combination(result, pointer)
        if value.get("uniqueItems") is True:
            return self._make_unique(result, step(pointer, "uniqueItems"))
        return result

    def _read_keyword(
        self, result: dict[str, Any], schema: dict[str, Any], keyword: str, content: Any, place: str, depth: int
    ) -> None:
        """Translate one keyword of `schema` into `result`."""
        if self._has_no_effect(schema, keyword, content, depth):
            return
        if keyword not in ENFORCED:
            self._leave_out(place, f"this keyword is not supported: {REFUSED.get(keyword, 'it is not known')}")
            return
        match keyword:
            case "format":
                self._read_format(result, content, place)
            case "items":
                self._read_items(result, schema, content, place, depth)
            case "type":
                types = self._read_types(content, place)
                result["type"] = _with_null(types) if schema.get("nullable") is True else types
            case "nullable":
                self._check_nullable(schema, content, place)
            case "uniqueItems":  # see `_make_unique`, which needs the keywords next to it
                if not isinstance(content, bool):
                    raise self._refuse(place, "it must be true or false")
            case "pattern":
                self._read_pattern(result, content, place)
            case _:
                result[keyword] = self._readers[keyword](content, place, depth)

    def _has_no_effect(self, schema: dict[str, Any], keyword: str, content: Any, depth: int) -> bool:
        """Return True for annotations, and for keywords that are read together with another one."""
        if keyword == "$id":
            return depth == 1 and schema is self._root
        if keyword == "propertyNames":  # see `_restrict_names`, which needs the keywords next to it
            return read_name_rule(content) is not None
        if keyword == "additionalItems":  # read with a list of `items`; without one it means nothing
            return True
        return keyword in ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance")

    def _read_items(self, result: dict[str, Any], schema: dict[str, Any], content: Any, place: str, depth: int) -> None:
        """Translate `items`: one schema, or in old drafts a list of schemas with `additionalItems` for the others."""
        if not isinstance(content, list):
            result["items"] = self._schema(content, place, depth)
            return
        result["prefixItems"] = self._schemas(content, place, depth) if content else []
        if "additionalItems" in schema:
            others = step(place.rpartition("/")[0], "additionalItems")
            result["items"] = self._schema(schema["additionalItems"], others, depth)

    def _make_unique(self, result: dict[str, Any], place: str) -> dict[str, Any]:
        """Turn an array of different items into a choice of lists. It needs nothing if there is one item at most."""
        if result.get("maxItems", 2) < 2:
            return result
        lists = list_unique(result)
        if lists is None:
            reason = "this keyword is not supported: no grammar can remember all items"
            self._leave_out(place, reason, below=Enforcement.STRICT)
            return result
        unique: dict[str, Any] = {"enum": lists}
        self.pointers[id(unique)] = self.pointers[id(result)]
        return unique

    def _read_pattern(self, result: dict[str, Any], value: Any, place: str) -> None:
        """Read a pattern, which may be several in one: a format's pattern has to match besides."""
        if not isinstance(value, str):
            raise self._refuse(place, "it must be a string")
        try:
            patterns = [translate_pattern(part) for part in split_look_aheads(value) or (value,)]
        except LookAroundError as error:
            self._leave_out(place, str(error), below=Enforcement.STRICT)
            return
        except PatternError as error:
            raise self._refuse(place, str(error)) from error
        for pattern in patterns:
            if "pattern" in result:
                _all_of(result).append({"pattern": pattern})
            else:
                result["pattern"] = pattern

    def _check_nullable(self, schema: dict[str, Any], content: Any, place: str) -> None:
        if not isinstance(content, bool):
            raise self._refuse(place, "it must be true or false")
        if content and "type" not in schema:
            raise self._refuse(place, "it has an effect next to 'type' only; write 'anyOf' with the type 'null'")

    def _restrict_names(self, result: dict[str, Any], rule: NameRule, pointer: str) -> None:
        """Turn the names of `propertyNames` into the only properties, or its pattern into the only name pattern."""
        place = step(pointer, "propertyNames")
        if rule.names is None and rule.pattern is None:
            return
        if "patternProperties" in result or (rule.pattern is not None and "properties" in result):
            raise self._refuse(place, "together with other keywords for names it is not supported: write the names out")
        others = result.get("additionalProperties", True)
        result["additionalProperties"] = False
        if rule.pattern is not None:
            result["patternProperties"] = {self._pattern(rule.pattern, step(place, "pattern"), 0): others}
            return
        if isinstance(others, dict):  # written once, however many names refer to it
            target = step(pointer, "additionalProperties")
            others = {"$ref": f"#/$defs/{self._names.setdefault(target, f'd{len(self._names)}')}"}
        own, names = result.get("properties", {}), dict.fromkeys(rule.names or ())
        ordered = (*(name for name in own if name in names), *(name for name in names if name not in own))
        result["properties"] = {self._text(name, place): own.get(name, others) for name in ordered}

    def _check_combination(self, result: dict[str, Any], pointer: str) -> None:
        for low, high in _PAIRS:
            if result.get(low, 0) > result.get(high, math.inf):
                raise self._refuse(step(pointer, low), f"no value can be valid: it is larger than '{high}'")
        required = result.get("required", ())
        if not required and "required" in result:
            del result["required"]
        least = result.get("minProperties", 0)
        if least <= len(required):
            result.pop("minProperties", None)
        elif least > 1:
            reason = "more than 1 needs as many names in 'required': a grammar cannot see that a name is repeated"
            self._leave_out(step(pointer, "minProperties"), reason)
            del result["minProperties"]
        if result.get("type") == "object":
            self._check_required(result, required, pointer)

    def _check_required(self, result: dict[str, Any], required: tuple[str, ...] | list[str], pointer: str) -> None:
        properties = result.get("properties", {})
        others = True if result.get("patternProperties") else result.get("additionalProperties", True)
        for index, name in enumerate(required):
            if properties.get(name, others) is False:
                reason = "no value can be valid: this name is required and not allowed"
                raise self._refuse(step(step(pointer, "required"), index), reason)

    # Keywords ---------------------------------------------------------------------------------------------------------

    def _read_types(self, value: Any, pointer: str) -> Any:
        types = value if isinstance(value, list) else [value]
        if not types or any(name not in TYPES for name in types if isinstance(name, str)):
            raise self._refuse(pointer, f"it must be one or several of {', '.join(TYPES)}")
        if any(not isinstance(name, str) for name in types) or len(set(types)) < len(types):
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
                return [self._const(item, step(pointer, index), 0) for index, item in enumerate(value)]
            case _:
                return {
                    self._text(key, pointer): self._const(item, step(pointer, key), 0) for key, item in value.items()
                }

    def _enum(self, value: Any, pointer: str, _depth: int) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise self._refuse(pointer, "it must be a list of at least one value")
        return [self._const(item, step(pointer, index), 0) for index, item in enumerate(value)]

    def _text(self, text: str, pointer: str) -> str:
        if (problem := find_unwritable(text)) is not None:
            raise self._refuse(pointer, problem)
        return text

    def _number(self, value: Any, pointer: str, _depth: int = 0) -> int | float:
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
        """Read a bound. One beyond all numbers that can be enforced is brought to their end: narrower, never wider."""
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            is_least = pointer.endswith("inimum")
            if (value < -MAX_NUMBER) if is_least else (value > MAX_NUMBER):
                return -MAX_NUMBER if is_least else MAX_NUMBER
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
            return translate_pattern(value)
        except PatternError as error:
            raise self._refuse(pointer, str(error)) from error

    def _read_format(self, result: dict[str, Any], value: Any, pointer: str) -> None:
        if not isinstance(value, str):
            raise self._refuse(pointer, "it must be a string")
        if value not in FORMATS:
            self._leave_out(pointer, f"'strict' has these formats: {', '.join(FORMATS)}", below=Enforcement.STRICT)
        elif (pattern := FORMATS[value]) is None:
            result["format"] = value
        elif "pattern" in result:
            _all_of(result).append({"pattern": pattern})
        else:
            result["pattern"] = pattern

    def _schemas(self, value: Any, pointer: str, depth: int) -> list[Schema]:
        if not isinstance(value, list) or not value:
            raise self._refuse(pointer, "it must be a list of at least one schema")
        return [self._schema(schema, step(pointer, index), depth) for index, schema in enumerate(value)]

    def _properties(self, value: Any, pointer: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise self._refuse(pointer, "it must be an object of schemas")
        return {
            self._text(name, step(pointer, name)): self._schema(schema, step(pointer, name), depth)
            for name, schema in value.items()
        }

    def _pattern_properties(self, value: Any, pointer: str, depth: int) -> dict[str, Schema]:
        if not isinstance(value, dict):
            raise self._refuse(pointer, "it must be an object of schemas")
        if len(value) > MAX_NAME_PATTERNS:
            raise self._refuse(pointer, f"it may have at most {MAX_NAME_PATTERNS} patterns")
        return {
            self._pattern(name, step(pointer, name), depth): self._schema(schema, step(pointer, name), depth)
            for name, schema in value.items()
        }

    def _required(self, value: Any, pointer: str, _depth: int) -> list[str]:
        if not isinstance(value, list) or any(not isinstance(name, str) for name in value):
            raise self._refuse(pointer, "it must be a list of names")
        if len(set(value)) < len(value):
            raise self._refuse(pointer, "it names a property twice")
        return [self._text(name, step(pointer, index)) for index, name in enumerate(value)]

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
        target = self._root
        for token in pointer.split("/")[1:]:
            key = token.replace("~1", "/").replace("~0", "~")
            target = target[int(key)] if isinstance(target, list) else target[key]
        return target


def _accepts_anything(schema: Any) -> bool:
    return schema is True or (isinstance(schema, dict) and not schema.keys() - ANNOTATIONS)


def _with_null(types: Any) -> Any:
    names = types if isinstance(types, list) else [types]
    return types if "null" in names else [*names, "null"]


def _all_of(result: dict[str, Any]) -> list[Any]:
    schemas: list[Any] = result.setdefault("allOf", [])
    return schemas


def _check_depth(value: Any, field: str) -> None:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise schema_error(field, "", f"it is nested more than {MAX_DEPTH} deep")
