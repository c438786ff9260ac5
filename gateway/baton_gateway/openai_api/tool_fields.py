"""Strict parsing of a chat's `tools`, `tool_choice` and `parallel_tool_calls`."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from baton_gateway.answers.tool_use import NO_TOOLS, Tool, ToolMode, ToolUse
from baton_gateway.errors import invalid, unsupported
from baton_gateway.openai_api.openai_fields import BESIDE_TEXTS, MAX_IGNORED_BYTES, Fields, wrong_type

MAX_TOOLS = 128
MAX_TOOLS_BYTES = 256 << 10
"""The most bytes of JSON of all tools together."""
MAX_NAME_CHARS = 128
TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_CALL_ID_CHARS = 256
_OTHER_TYPES = re.compile(
    r"(openrouter:)?(web_search|web_fetch|file_search|browser_search|code_interpreter|code_execution|image_generation"
    r"|mcp|tool_search|computer|retrieval|google_search|url_context|x_search|live_search|builtin_function|custom"
    r"|namespace|local_shell|shell|apply_patch|bash|text_editor|memory)(_\w{1,40})?"
)
"""Types of tools that clients send beside functions: those that a provider runs, and those of other APIs."""


def read_tool_use(fields: Fields) -> ToolUse:
    """Read the fields of tools from a chat's body. Raises RefusedError."""
    for name in ("functions", "function_call"):
        fields.refuse(name, "it is deprecated; use 'tools' and 'tool_choice'", harmless=([], "none"))
    choice = fields.take("tool_choice")
    tools = _tools(fields, is_free=choice in (None, "none", "auto"))
    parallel = fields.flag("parallel_tool_calls", True)
    if not tools:
        if choice not in (None, "none", "auto"):
            raise invalid("tool_choice", "'tool_choice' needs 'tools'.")
        return NO_TOOLS
    mode, named = _choice(choice, tools)
    return ToolUse(tools, mode, named, parallel)


def check_tool_name(value: Any, path: str) -> str:
    """Check the name of a tool. Raises RefusedError if it is not allowed."""
    if not isinstance(value, str):
        raise wrong_type(path, "a string")
    if not TOOL_NAME.fullmatch(value):
        raise invalid(path, f"'{path}' must be 1 to {MAX_NAME_CHARS} letters, digits, '_', '-' or '.'.")
    return value


def check_tool_list(value: Any, path: str, expected: str = "a list of tools") -> list[Any]:
    """Check a list of tools or calls; None is an empty one. Raises RefusedError if it is no list, or too long."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(path, expected)
    if len(value) > MAX_TOOLS:
        raise invalid(path, f"'{path}' has {len(value)} entries; at most {MAX_TOOLS} are allowed.", "too_long")
    return value


def skip_hosted_tool(kind: str, path: str, is_free: bool) -> str:
    """Name a tool that runs at the provider and is skipped here. `is_free`: the model may choose whether it calls.

    Raises RefusedError where it may not, because the tool could be the one that it has to call.
    """
    if not is_free:
        reason = f"{kind!r} runs at the provider, and nothing runs it here; with tool_choice 'auto' it is skipped"
        raise unsupported(f"{path}.type", reason)
    return f"{path}:{kind}"


def _tools(fields: Fields, is_free: bool) -> tuple[Tool, ...]:
    """Read the functions among the tools. Other types are skipped and reported if the model may choose (`is_free`)."""
    value = check_tool_list(fields.take("tools"), "tools")
    if value and (size := len(msgspec.json.encode(value))) > MAX_TOOLS_BYTES:
        message = f"'tools' has {size} bytes of JSON; at most {MAX_TOOLS_BYTES} are allowed."
        raise invalid("tools", message, "too_long")
    tools: dict[str, Tool] = {}
    for index, entry in enumerate(value):
        path = f"tools[{index}]"
        kind = entry.get("type") if isinstance(entry, dict) else None
        if isinstance(kind, str) and _OTHER_TYPES.fullmatch(kind):
            fields.report_skipped(_skip_other_tool(kind, path, is_free))
            continue
        tool = _tool(entry, path)
        if tool.name in tools:
            path = f"{path}.function.name" if "function" in entry else f"{path}.name"
            raise invalid(path, f"'{path}' is the name of another tool: '{tool.name}'.")
        tools[tool.name] = tool
    return tuple(tools.values())


def _skip_other_tool(kind: str, path: str, is_free: bool) -> str:
    if not is_free:
        reason = f"chats have function tools only; with tool_choice 'auto' {kind!r} is skipped"
        raise unsupported(f"{path}.type", reason)
    return f"{path}:{kind}"


def _tool(value: Any, path: str) -> Tool:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    if (kind := fields.take("type")) not in (None, "function"):
        raise unsupported(f"{path}.type", f"only 'function' tools are available, not {str(kind)[:32]!r}")
    if fields.peek_text("name") and value.get("function") is None:  # as `/v1/responses` has them; Cursor sends them
        return read_function({key: item for key, item in value.items() if key not in ("type", "function")}, f"{path}.")
    function = fields.require("function")
    fields.ignore(*BESIDE_TEXTS, max_bytes=MAX_IGNORED_BYTES)
    fields.end()
    if not isinstance(function, dict):
        raise wrong_type(f"{path}.function", "an object")
    return read_function(function, f"{path}.function.")


def read_function(value: dict[str, Any], path: str) -> Tool:
    """Read one function. `path`: the prefix of its fields in errors. Raises RefusedError."""
    fields = Fields(value, path)
    name = check_tool_name(fields.require("name"), fields.name("name"))
    description = fields.text("description", MAX_TOOLS_BYTES)
    parameters = fields.take("parameters")
    strict = fields.flag("strict", False)
    fields.ignore(*BESIDE_TEXTS, max_bytes=MAX_IGNORED_BYTES)
    fields.end()
    if parameters is not None:
        parameters = _parameters(parameters, fields.name("parameters"))
    return Tool(name, description, parameters, strict)


def _parameters(value: Any, path: str) -> dict[str, Any]:
    """Read the schema of arguments, which are always an object, even if the schema allows more types."""
    if not isinstance(value, dict):
        raise wrong_type(path, "an object: a JSON Schema")
    kinds = value.get("type", "object")
    if kinds is None or (isinstance(kinds, list) and "object" in kinds):
        return value | {"type": "object"}
    if kinds != "object":
        raise invalid(f"{path}.type", f"'{path}.type' must be 'object': arguments have names.")
    return value


def _choice(value: Any, tools: tuple[Tool, ...]) -> tuple[ToolMode, str | None]:
    if value is None:
        return ToolMode.AUTO, None
    if isinstance(value, str):
        if value not in tuple(ToolMode):
            allowed = ", ".join(ToolMode)
            raise invalid("tool_choice", f"'tool_choice' must be one of {allowed}, or name a function.")
        return ToolMode(value), None
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", "a string or an object")
    fields = Fields(value, "tool_choice.")
    if (kind := fields.require("type")) != "function":
        raise unsupported("tool_choice.type", f"only 'function' is available, not {str(kind)[:32]!r}")
    path = "tool_choice.name"
    if (name := fields.take("name")) is None:
        path = "tool_choice.function.name"
        function = fields.require("function")
        if not isinstance(function, dict):
            raise wrong_type("tool_choice.function", "an object")
        inner = Fields(function, "tool_choice.function.")
        name = inner.require("name")
        inner.end()
    fields.end()
    if not any(tool.name == name for tool in tools):
        raise invalid(path, f"'{path}' is none of the tools: {str(name)[:MAX_NAME_CHARS]!r}.")
    return ToolMode.REQUIRED, name
