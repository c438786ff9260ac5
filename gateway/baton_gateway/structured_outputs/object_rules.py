"""Objects whose members are written one by one, outside of JSON: as named arguments, or between tags. Pure.

The rules lead through the schema's properties in their order. Names that no property has are written only where the
schema has no properties. So the rules may be narrower than the schema, never wider.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from baton_gateway.structured_outputs.lark import Marks, containing, json_term, literal, marked, split_mark
from baton_gateway.structured_outputs.schema_keywords import NO_SAY

MAX_RAW_CHARS = 4_096
"""A bound on a string's length that its rule counts."""
_MAX_OTHERS = 32
_PLAIN = frozenset({"type", "properties", "required", "additionalProperties", "$id"})
_RAW = (frozenset({"type", "minLength", "maxLength"}), frozenset({"type", "enum"}), frozenset({"type", "const"}))
_NAME = re.compile(r"[^\W\d]\w*")


class MemberForm(msgspec.Struct, frozen=True):
    """How one member is written."""

    before: str
    """Before its name."""
    between: str
    """Between name and value."""
    after: str
    separator: str = ""
    closes: str = ""
    """What ends a string that is written as it is; empty: strings are quoted, and words are Python's."""

    @property
    def is_raw(self) -> bool:
        return bool(self.closes)


def is_text(schema: Any) -> bool:
    """Whether every value is a string, as far as the schema itself says."""
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    if isinstance(kind, str):
        return kind == "string"
    if isinstance(kind, list):
        return set(map(str, kind)) == {"string"}
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
    return bool(values) and all(isinstance(value, str) for value in values)


def writes_members(schema: Mapping[str, Any], form: MemberForm) -> bool:
    """Whether objects of a client's schema can be written so. Of what is no schema nothing is said."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return True
    if _keywords(schema) - _PLAIN or not all(_takes_name(name, form) for name in (*properties, *required)):
        return False
    return not form.is_raw or all(_takes_text(part, form) for part in properties.values() if is_text(part))


def _keywords(schema: Mapping[str, Any]) -> set[str]:
    return {key for key in schema if key not in NO_SAY and not key.startswith("x-")}


def _takes_name(name: Any, form: MemberForm) -> bool:
    if not isinstance(name, str) or not form.is_raw:
        return isinstance(name, str) and _NAME.fullmatch(name) is not None
    return name == name.strip() != "" and form.between[0] not in name and "\n" not in name


def _takes_text(part: Mapping[str, Any], form: MemberForm) -> bool:
    keys = _keywords(part)
    if not any(keys <= allowed for allowed in _RAW):
        return False
    values = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]] if "const" in part else ["x"]
    counts = [part.get("minLength", 0), part.get("maxLength", 0)]
    return (
        all(isinstance(value, str) and form.closes not in value for value in values)
        and all(isinstance(count, int) and count <= MAX_RAW_CHARS for count in counts)
    )  # fmt: skip


def member_rules(rule: str, schema: dict[str, Any], form: MemberForm, marks: Marks) -> list[str]:
    """Lines of Lark of which `rule` is an object of a checked schema that `writes_members` took."""
    others = schema.get("additionalProperties", True)
    required = schema.get("required", ())
    parts = {name: part for name, part in schema.get("properties", {}).items() if part is not False}
    parts |= {name: others for name in required if name not in parts}
    written = _Members(rule, form, marks, schema.get("$defs", {}))
    if parts:
        return written.named(parts, required)
    return [f'{rule}: ""'] if others is False else written.others(others)


class _Members:
    def __init__(self, rule: str, form: MemberForm, marks: Marks, definitions: dict[str, Any]) -> None:
        self._rule = rule
        self._form = form
        self._marks = marks
        self._definitions = definitions
        self._lines: list[str] = []

    def named(self, parts: Mapping[str, Any], required: Sequence[str]) -> list[str]:
        """The properties, those that are not required or left out."""
        rule, form, last = self._rule, self._form, len(parts) - 1
        self._lines.append(f"{rule}: {rule}_first_0")
        separator = literal(form.separator) if form.separator else ""
        for place, (name, part) in enumerate(parts.items()):
            member, rest = f"{rule}_{place}", "" if place == last else f"{rule}_more_{place + 1}"
            self._lines.append(f"{member}: {marked(form.before + name + form.between, self._marks)} "
                               f"{self._value(part, f'{rule}_value_{place}')}")  # fmt: skip
            if name in required:
                self._lines.append(f"{rule}_first_{place}: {member} {rest}")
                self._lines.append(f"{rule}_more_{place}: {separator} {member} {rest}")
                continue
            skipped = f" | {rule}_first_{place + 1}" if rest else " | "
            self._lines.append(f"{rule}_first_{place}: {member} {rest}{skipped}{'' if rest else chr(34) * 2}")
            self._lines.append(f"{rule}_more_{place}: ({separator} {member})? {rest}")
        return self._lines

    def others(self, part: Any) -> list[str]:
        """Members of any name."""
        rule, form = self._rule, self._form
        separator = literal(form.separator) if form.separator else ""
        name = rf"{rule.upper()}_NAME: /[A-Za-z_][A-Za-z0-9_]{{0,63}}/"
        value = self._raw({}, f"{rule}_value") if form.is_raw and part is True else self._value(part, f"{rule}_value")
        return [
            *self._lines,
            name,
            f"{rule}: ({rule}_any ({separator} {rule}_any){{0,{_MAX_OTHERS - 1}}})?",
            f"{rule}_any: {marked(form.before, self._marks)} {rule.upper()}_NAME {marked(form.between, self._marks)} "
            f"{value}",
        ]

    def _value(self, part: Any, rule: str) -> str:
        """A value with what comes after it."""
        if self._form.is_raw and is_text(part):
            return self._raw(part, rule)
        written = self._python(part) if not self._form.is_raw else None
        return f"({written or self._json(part)}) {marked(self._form.after, self._marks)}"

    def _json(self, part: Any) -> str:
        schema = {} if part is True else part
        return json_term(schema | {"$defs": self._definitions} if self._definitions else schema)

    def _python(self, part: Any) -> str | None:
        """Booleans and null as Python's words, alone or in a choice; None: JSON says it as well."""
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

    def _raw(self, part: Mapping[str, Any], rule: str) -> str:
        """A string as it is, with what comes after it: one terminal up to the first mark that is a token."""
        head, tail = split_mark(self._form.after, self._marks)
        ended = f" {literal(head)}" if head else ""
        values = [part["const"]] if "const" in part else part.get("enum")
        if values is not None:
            either = " | ".join(literal(value) if value else '""' for value in dict.fromkeys(values))
            self._lines.append(f"{rule.upper()}: ({either}){ended}")
        else:
            most = part.get("maxLength", "")
            counted = f"{{{part.get('minLength', 0)},{most}}}"
            body = f"{rule.upper()}_TEXT: /(.|\\n){counted}/ & ~{containing(self._form.closes)}"
            self._lines += [body, f"{rule.upper()}: {rule.upper()}_TEXT{ended}"]
        return f"{rule.upper()} {marked(tail, self._marks)}"
