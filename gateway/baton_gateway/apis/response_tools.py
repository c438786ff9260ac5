"""The tools of `/v1/responses`: those that clients run become functions of a chat, and their calls become items again.

Hosted tools, which OpenAI's servers run, are skipped where the model may choose, since nothing runs them here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton_gateway.errors import unsupported
from baton_gateway.openai_api.openai_fields import (
    BESIDE_TEXTS,
    MAX_IGNORED_BYTES,
    MAX_TEXT_CHARS,
    Fields,
    check_text,
    wrong_type,
)
from baton_gateway.openai_api.tool_fields import check_tool_list, check_tool_name, skip_hosted_tool

Item = dict[str, Any]
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object", "properties": properties, "required": required.split(), "additionalProperties": False,
    }  # fmt: skip


CUSTOM = "custom"
_CUSTOM_PARAMETERS = _object("input", input=_TEXT)


@dataclass(frozen=True, slots=True)
class BuiltInTool:
    """A tool whose arguments OpenAI defined, and which the client runs."""

    description: str
    parameters: dict[str, Any]
    content: str
    """The field of the call's item that holds the arguments."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Members of that field that every call has."""


BUILT_IN = {
    "local_shell": BuiltInTool(
        "Runs a command on the user's machine.",
        _object("command", command=_TEXTS, working_directory=_TEXT, timeout_ms={"type": "integer"}),
        "action",
        {"type": "exec", "env": {}},
    ),
    "shell": BuiltInTool(
        "Runs commands in a shell on the user's machine.",
        _object("commands", commands=_TEXTS, timeout_ms={"type": "integer"}, max_output_length={"type": "integer"}),
        "action",
    ),
    "apply_patch": BuiltInTool(
        "Creates, updates or deletes a file by a diff in the V4A format.",
        _object("type path", type={"enum": ["create_file", "update_file", "delete_file"]}, path=_TEXT, diff=_TEXT),
        "operation",
    ),
}
_HOSTED = re.compile(
    r"(web_search|file_search|code_interpreter|image_generation|mcp|tool_search|computer|programmatic_tool_calling)\w{0,40}"
)


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool that the chat knows as a function of another name or form."""

    kind: str
    """`function`, `custom` or a name of `BUILT_IN`."""
    name: str
    namespace: str | None = None

    def item(self, item_id: str, call_id: str, arguments: str, status: str) -> Item:
        """Build the item of a call. `arguments`: JSON, perhaps cut."""
        head = {"id": item_id, "type": f"{self.kind}_call", "call_id": call_id, "status": status}
        space = {} if self.namespace is None else {"namespace": self.namespace}
        if self.kind == "function":
            return head | {"name": self.name, "arguments": arguments} | space
        values = _decode(arguments)
        if self.kind == CUSTOM:
            text = values.get("input")
            shown = text if isinstance(text, str) else arguments
            return head | {"type": "custom_tool_call", "name": self.name, "input": shown} | space
        tool = BUILT_IN[self.kind]
        return head | {tool.content: {**tool.fixed, **values}}


def _decode(arguments: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(slots=True)
class ResponseTools:
    """The tools of one request, as functions of a chat."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """The path of each function's tool."""
    others: dict[str, ClientTool] = field(default_factory=dict)
    """Tools that are no plain functions, by the function's name."""
    skipped: list[str] = field(default_factory=list)
    """The hosted tools that were skipped: path and type."""


def qualified_name(namespace: Any, name: Any) -> Any:
    """Return the function's name of a tool in a namespace."""
    if not isinstance(namespace, str) or not namespace:
        return name
    return f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"


def read_tools(value: Any, is_free: bool) -> ResponseTools:
    """Read `tools`. `is_free`: the model may choose whether it calls, so hosted tools may be missing.

    Raises RefusedError.
    """
    tools = ResponseTools()
    for path, entry, namespace in _entries(value, "tools", None):
        fields = _fields(entry, path)
        kind = fields.require("type")
        if kind == "function":
            function = _function(fields, path)
        elif kind == CUSTOM:
            function = _custom(fields, path)
        elif isinstance(kind, str) and kind in BUILT_IN and namespace is None:
            fields.ignore("environment", max_bytes=MAX_IGNORED_BYTES)
            tool = BUILT_IN[kind]
            function = {"name": kind, "description": tool.description, "parameters": tool.parameters}
        elif isinstance(kind, str) and _HOSTED.fullmatch(kind):
            tools.skipped.append(skip_hosted_tool(kind, path, is_free))
            continue
        else:
            known = ", ".join(("function", CUSTOM, "namespace", *BUILT_IN))
            raise unsupported(f"{path}.type", f"{str(kind)[:32]!r} is not known; clients' tools are {known}")
        fields.ignore("defer_loading", "allowed_callers", *BESIDE_TEXTS, max_bytes=MAX_IGNORED_BYTES)
        fields.end()
        name = function["name"]
        if kind != "function" or namespace is not None:
            qualified = qualified_name(namespace, name)
            tools.others[qualified] = ClientTool(kind, name, namespace)
            function["name"] = qualified
        tools.functions.append({"type": "function", "function": function})
        tools.origins.append(path)
    return tools


def _entries(value: Any, path: str, namespace: str | None) -> Iterator[tuple[str, Any, str | None]]:
    """Yield the path of each tool, the tool, and its namespace."""
    for index, entry in enumerate(check_tool_list(value, path)):
        place = f"{path}[{index}]"
        if namespace is None and isinstance(entry, dict) and entry.get("type") == "namespace":
            fields = _fields(entry, place)
            fields.require("type")
            name = check_tool_name(fields.require("name"), f"{place}.name")
            fields.text("description", MAX_TEXT_CHARS)
            yield from _entries(fields.require("tools"), f"{place}.tools", name)
            fields.end()
        else:
            yield place, entry, namespace


def _fields(value: Any, path: str) -> Fields:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    return Fields(value, f"{path}.")


def _function(fields: Fields, path: str) -> dict[str, Any]:
    function = {name: fields.take(name) for name in ("name", "description", "parameters", "strict")}
    function["name"] = check_tool_name(fields.require("name") if function["name"] is None else function["name"],
                                       f"{path}.name")  # fmt: skip
    fields.ignore("output_schema", max_bytes=MAX_TEXT_CHARS)
    return {name: value for name, value in function.items() if value is not None}


def _custom(fields: Fields, path: str) -> dict[str, Any]:
    """Read a custom tool: a function of one text. Its grammar is described, and not enforced."""
    name = check_tool_name(fields.require("name"), f"{path}.name")
    description = fields.text("description", MAX_TEXT_CHARS) or ""
    form = fields.take("format")
    if form is not None:
        inner = _fields(form, f"{path}.format")
        if inner.require("type") == "grammar":
            syntax = check_text(inner.require("syntax"), f"{path}.format.syntax", 64)
            definition = check_text(inner.require("definition"), f"{path}.format.definition", MAX_TEXT_CHARS)
            description += f"\n\nThe input follows this {syntax} grammar:\n{definition}"
        inner.end()
    return {"name": name, "description": description.strip(), "parameters": _CUSTOM_PARAMETERS}


def read_tool_choice(value: Any) -> Any:
    """Translate `tool_choice` to a chat's. Raises RefusedError."""
    if value is None or isinstance(value, str):
        return value
    fields = _fields(value, "tool_choice")
    kind = fields.require("type")
    if kind in ("function", CUSTOM):
        name = qualified_name(fields.take("namespace"), fields.require("name"))
    elif isinstance(kind, str) and kind in BUILT_IN:
        name = kind
    else:
        raise unsupported("tool_choice.type", f"only 'function' and 'custom' are available, not {str(kind)[:32]!r}")
    fields.end()
    return {"type": "function", "function": {"name": name}}


# Items that come back -------------------------------------------------------------------------------------------------


def read_call_item(kind: Any, fields: Fields) -> tuple[Any, Any, Any] | None:
    """Read an item of a call: its id, the function's name and its arguments. None: the item is no call."""
    if kind == "function_call":
        name = qualified_name(fields.take("namespace"), fields.require("name"))
        return fields.require("call_id"), name, fields.take("arguments")
    if kind == "custom_tool_call":
        name = qualified_name(fields.take("namespace"), fields.require("name"))
        text = fields.require("input")
        return fields.require("call_id"), name, json.dumps({"input": text}, ensure_ascii=False)
    for name, tool in BUILT_IN.items():
        if kind == f"{name}_call":
            content = fields.require(tool.content)
            if not isinstance(content, dict):
                raise wrong_type(fields.name(tool.content), "an object")
            values = {key: value for key, value in content.items() if key not in tool.fixed and value is not None}
            return fields.require("call_id"), name, json.dumps(values, ensure_ascii=False)
    return None


CALL_OUTPUTS = frozenset(
    ("function_call_output", "custom_tool_call_output", *(f"{name}_call_output" for name in BUILT_IN))
)


def read_output(value: Any, path: str, read_texts: Callable[[Any, str], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Read the output of a call: text, parts, nothing, or a shell's list of results."""
    if value is None:
        return []
    is_results = (
        isinstance(value, list) and value and all(isinstance(part, dict) and "stdout" in part for part in value)
    )
    if is_results:
        return [{"type": "text", "text": json.dumps(part, ensure_ascii=False)} for part in value]
    return read_texts(value, path)


def is_hosted_item(kind: Any) -> bool:
    """Return True for an item of a tool that another provider ran. It has nothing that a template could show."""
    return isinstance(kind, str) and kind.endswith(("_call", "_list_tools")) and bool(_HOSTED.fullmatch(kind))
