"""Grammar rules for objects that are not written as JSON: members as named arguments, or between tags. Pure.

The rules follow the schema's properties in their order. Other names are allowed only if the schema has no properties.
So the rules may be narrower than the schema, but never wider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from baton_gateway.structured_outputs.lark import (
    SpecialTokens,
    json_term,
    literal,
    pattern_containing,
    split_at_token,
    to_terms,
)
from baton_gateway.structured_outputs.text_schema import TextSchema, keywords, read_text_schema

MAX_RAW_CHARS = 4_096
"""The longest `minLength` or `maxLength` of a raw string, whose rule counts characters."""
_MAX_OTHERS = 32
_PLAIN = frozenset({"type", "properties", "required", "additionalProperties", "$id"})
_RAW = (frozenset({"type", "minLength", "maxLength"}), frozenset({"type", "enum"}))
_NAME = re.compile(r"[^\W\d]\w*")
_ANY_TEXT = TextSchema(({},), is_nullable=False)


class MemberSyntax(msgspec.Struct, frozen=True):
    """How one member of an object is written."""

    before: str
    """The text before the name."""
    between: str
    """The text between name and value."""
    after: str
    separator: str = ""
    closes: str = ""
    """The text that ends a raw string; empty: strings are quoted, and literals are Python's."""

    @property
    def is_raw(self) -> bool:
        return bool(self.closes)


def can_write_members(schema: Mapping[str, Any], syntax: MemberSyntax) -> bool:
    """Return True if objects of a client's schema can be written in this syntax, or if it is no schema at all."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return True
    if keywords(schema) - _PLAIN or not all(_can_write_name(name, syntax) for name in (*properties, *required)):
        return False
    texts = (read_text_schema(part, schema) for part in properties.values()) if syntax.is_raw else ()
    return all(_can_write_text(case, syntax) for text in texts if text is not None for case in text.cases)


def _can_write_name(name: Any, syntax: MemberSyntax) -> bool:
    if not isinstance(name, str) or not syntax.is_raw:
        return isinstance(name, str) and _NAME.fullmatch(name) is not None
    return name == name.strip() != "" and syntax.between[0] not in name and "\n" not in name


def _can_write_text(case: Mapping[str, Any], syntax: MemberSyntax) -> bool:
    keys = keywords(case)
    if not any(keys <= allowed for allowed in _RAW):
        return False
    counts = [case.get("minLength", 0), case.get("maxLength", 0)]
    return (
        not any(syntax.closes in value for value in case.get("enum", ()))
        and all(isinstance(count, int) and count <= MAX_RAW_CHARS for count in counts)
    )  # fmt: skip


def build_member_rules(rule: str, schema: dict[str, Any], syntax: MemberSyntax, tokens: SpecialTokens) -> list[str]:
    """Return lines of Lark in which `rule` matches an object of a checked schema that `can_write_members` accepted."""
    others = schema.get("additionalProperties", True)
    required = schema.get("required", ())
    parts = {name: part for name, part in schema.get("properties", {}).items() if part is not False}
    parts |= {name: others for name in required if name not in parts}
    writer = _RuleWriter(rule, syntax, tokens, schema.get("$defs", {}))
    if parts:
        return writer.write_properties(parts, required)
    return [f'{rule}: ""'] if others is False else writer.write_any_names(others)


class _RuleWriter:
    """Collects the lines of one object's rule."""

    def __init__(self, rule: str, syntax: MemberSyntax, tokens: SpecialTokens, definitions: dict[str, Any]) -> None:
        self._rule = rule
        self._syntax = syntax
        self._tokens = tokens
        self._definitions = definitions
        self._lines: list[str] = []

    def write_properties(self, parts: Mapping[str, Any], required: Sequence[str]) -> list[str]:
        """Write the rules of the properties in their order; those that are not required may be left out."""
        rule, syntax, last = self._rule, self._syntax, len(parts) - 1
        self._lines.append(f"{rule}: {rule}_first_0")
        separator = literal(syntax.separator) if syntax.separator else ""
        for place, (name, part) in enumerate(parts.items()):
            member, rest = f"{rule}_{place}", "" if place == last else f"{rule}_more_{place + 1}"
            self._lines.append(f"{member}: {to_terms(syntax.before + name + syntax.between, self._tokens)} "
                               f"{self._value(part, f'{rule}_value_{place}')}")  # fmt: skip
            if name in required:
                self._lines.append(f"{rule}_first_{place}: {member} {rest}")
                self._lines.append(f"{rule}_more_{place}: {separator} {member} {rest}")
                continue
            skipped = f" | {rule}_first_{place + 1}" if rest else " | "
            self._lines.append(f"{rule}_first_{place}: {member} {rest}{skipped}{'' if rest else chr(34) * 2}")
            self._lines.append(f"{rule}_more_{place}: ({separator} {member})? {rest}")
        return self._lines

    def write_any_names(self, part: Any) -> list[str]:
        """Write the rules of members with any name, whose values follow `part`."""
        rule, syntax = self._rule, self._syntax
        separator = literal(syntax.separator) if syntax.separator else ""
        name = rf"{rule.upper()}_NAME: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/"
        is_free = syntax.is_raw and part is True
        value = self._raw(_ANY_TEXT, f"{rule}_value") if is_free else self._value(part, f"{rule}_value")
        before, between = to_terms(syntax.before, self._tokens), to_terms(syntax.between, self._tokens)
        return [
            *self._lines,
            name,
            f"{rule}: ({rule}_any ({separator} {rule}_any){{0,{_MAX_OTHERS - 1}}})?",
            f"{rule}_any: {before} {rule.upper()}_NAME {between} {value}",
        ]

    def _value(self, part: Any, rule: str) -> str:
        """Return the terms of a value with the text after it."""
        if self._syntax.is_raw and (text := read_text_schema(part, {"$defs": self._definitions})) is not None:
            return self._raw(text, rule)
        literals = self._python(part) if not self._syntax.is_raw else None
        return f"({literals or self._json(part)}) {to_terms(self._syntax.after, self._tokens)}"

    def _json(self, part: Any) -> str:
        schema = {} if part is True else part
        return json_term(schema | {"$defs": self._definitions} if self._definitions else schema)

    def _python(self, part: Any) -> str | None:
        """Return the terms of booleans and null as Python's literals, alone or in a choice; None: JSON will do."""
        match part:
            case {"type": "boolean"} if len(part) == 1:
                return '"True" | "False"'
            case {"type": "null"} if len(part) == 1:
                return '"None"'
            case {"anyOf": [*cases]} if len(part) == 1:
                return " | ".join(f"({self._python(case) or self._json(case)})" for case in cases if case is not False)
            case {"type": [*kinds], **rest} if not {"enum", "const"} & rest.keys() and {"boolean", "null"} & {*kinds}:
                cases = [{"type": kind} | ({} if kind in ("boolean", "null") else rest) for kind in kinds]
                return " | ".join(f"({self._python(case) or self._json(case)})" for case in cases)
        return None

    def _raw(self, text: TextSchema, rule: str) -> str:
        """Return the terms of a raw string with the text after it: one terminal up to the first special token."""
        head, tail = split_at_token(self._syntax.after, self._tokens)
        ended = f" {literal(head)}" if head else ""
        either = ['"null"'] if text.is_nullable else []
        for place, case in enumerate(text.cases):
            if "enum" in case:
                either += [literal(value) if value else '""' for value in dict.fromkeys(case["enum"])]
                continue
            counted = f"{{{case.get('minLength', 0)},{case.get('maxLength', '')}}}"
            name = f"{rule.upper()}_TEXT" + (f"_{place}" if place else "")
            self._lines.append(f"{name}: /(.|\\n){counted}/ & ~{pattern_containing(self._syntax.closes)}")
            either.append(name)
        self._lines.append(f"{rule.upper()}: ({' | '.join(either)}){ended}")
        return f"{rule.upper()} {to_terms(tail, self._tokens)}"
