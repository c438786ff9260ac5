"""The tools of `/v1/messages` as functions of a chat. Anthropic defined some by name alone; clients run those too.

Server tools, which Anthropic's servers run, are skipped where the model may choose, since nothing runs them here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from baton_gateway.errors import unsupported
from baton_gateway.openai_api.openai_fields import BESIDE_TEXTS, MAX_TEXT_CHARS, Fields, wrong_type
from baton_gateway.openai_api.tool_fields import check_tool_list, skip_hosted_tool

_TEXT = {"type": "string"}
_LINES = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}


def _commands(*names: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"command": {"enum": [*names]}, **properties}, "required": ["command"]}


_EDIT = {"path": _TEXT, "file_text": _TEXT, "old_str": _TEXT, "new_str": _TEXT, "insert_line": {"type": "integer"}}
_CLIENT_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "bash": (
        "Runs a command in a shell that keeps its state between calls.",
        {"type": "object", "properties": {"command": _TEXT, "restart": {"type": "boolean"}}},
    ),
    "text_editor": (
        "Views, creates and edits files.",
        _commands("view", "create", "str_replace", "insert", **_EDIT, insert_text=_TEXT, view_range=_LINES),
    ),
    "memory": (
        "Keeps notes in files under /memories between conversations.",
        _commands(
            "view", "create", "str_replace", "insert", "delete", "rename",
            **_EDIT, insert_text=_TEXT, view_range=_LINES, old_path=_TEXT, new_path=_TEXT,
        ),
    ),
}  # fmt: skip
"""Descriptions and arguments of the tools that clients run, by their type without its date."""
_SERVER_TOOLS = re.compile(r"(web_search|web_fetch|code_execution|tool_search_tool|mcp_toolset|advisor)(_\w{1,40})?")
_DATED = re.compile(r"([a-z_]+?)_\d{8}")
_OF_TOOLS = (
    "eager_input_streaming", "input_examples", "defer_loading", "allowed_callers", "max_characters", *BESIDE_TEXTS,
)  # fmt: skip


@dataclass(slots=True)
class MessageTools:
    """The tools of one request, as functions of a chat."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    """The path of each function's tool."""
    skipped: list[str] = field(default_factory=list)
    """The server tools that were skipped: path and type."""


def read_message_tools(value: Any, is_free: bool) -> MessageTools:
    """Read `tools`. `is_free`: the model may choose whether it calls, so server tools may be missing.

    Raises RefusedError.
    """
    tools = MessageTools()
    for index, entry in enumerate(check_tool_list(value, "tools")):
        path = f"tools[{index}]"
        if not isinstance(entry, dict):
            raise wrong_type(path, "an object")
        fields = Fields(entry, f"{path}.")
        kind = fields.take("type")
        if isinstance(kind, str) and _SERVER_TOOLS.fullmatch(kind):
            tools.skipped.append(skip_hosted_tool(kind, path, is_free))
            continue
        tools.functions.append({"type": "function", "function": _function(fields, kind, path)})
        tools.origins.append(path)
    return tools


def _function(fields: Fields, kind: Any, path: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": fields.require("name")}
    description = fields.text("description", MAX_TEXT_CHARS)
    strict = fields.flag("strict", False)
    if kind in (None, "custom"):
        function["parameters"] = fields.require("input_schema")
    else:
        match = _DATED.fullmatch(kind) if isinstance(kind, str) else None
        if match is None or match[1] not in _CLIENT_TOOLS:
            known = ", ".join(("custom", *(f"{name}_…" for name in _CLIENT_TOOLS)))
            raise unsupported(f"{path}.type", f"{str(kind)[:32]!r} is not known; clients' tools are {known}")
        text, function["parameters"] = _CLIENT_TOOLS[match[1]]
        description = description or text
    fields.ignore(*_OF_TOOLS, max_bytes=MAX_TEXT_CHARS)
    fields.end()
    function |= {} if description is None else {"description": description}
    return function | ({"strict": True} if strict else {})
