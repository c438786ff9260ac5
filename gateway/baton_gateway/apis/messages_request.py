"""Translates bodies of Anthropic's `/v1/messages` to chat requests.

Consecutive turns of one side are merged, as in Anthropic's API. Tool results become messages of their own.
docs/api-http.md lists the fields.
"""

from __future__ import annotations

import json
import re
from typing import Any

from baton_gateway.apis.chat_body import ChatBody, text_part
from baton_gateway.apis.message_tools import read_message_tools
from baton_gateway.apis.messages_answer import THREAD_UNSUPPORTED
from baton_gateway.apis.text_blocks import read_text_block
from baton_gateway.errors import invalid, unsupported
from baton_gateway.openai_api.chat_messages import MAX_MESSAGES, MAX_PARTS
from baton_gateway.openai_api.openai_fields import (
    BESIDE_TEXTS,
    MAX_IGNORED_BYTES,
    MAX_TEXT_CHARS,
    Fields,
    UnknownFields,
    check_integer,
    check_text,
    wrong_type,
)
from baton_gateway.openai_api.openai_types import MAX_STOPS, MAX_TOKEN_ID, MAX_TOKENS, ChatRequest

_IGNORED = (
    "metadata", "cache_control", "inference_geo", "speed", "user_profile_id", "workspace_id",
    "diagnostics", "client_metadata", "litellm_metadata", "betas", "anthropic_beta", "anthropic_version", "fallbacks",
)  # fmt: skip
"""Fields that are accepted without effect: they concern the provider's side, not the answer."""
_SERVER_BLOCK = re.compile(
    r"server_tool_use|mcp_tool_use|mcp_tool_listing|fallback"
    r"|(web_search|web_fetch|\w{0,16}code_execution|tool_search|mcp|advisor)_tool_result"
)
_KEEPS_ALL = "clear_thinking_20251015"
_NO_EDITS = ({"edits": []}, *({"edits": [{"type": _KEEPS_ALL, "keep": keep}]} for keep in ("all", {"type": "all"})))
"""Values with which agents ask for the whole conversation to be kept."""
_OF_MESSAGES = ("id", "type", "model", "stop_reason", "stop_sequence", "usage", "container", "context_management")
"""Fields of answers, which some clients resend whole."""
_MAX_WORD = 64


def parse_message(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> ChatRequest:
    """Parse the body of a message. Raises RefusedError that names the offending field."""
    fields, body = Fields(raw), ChatBody()
    max_tokens = check_integer(fields.require("max_tokens"), "max_tokens", 1, MAX_TOKENS)
    body.set_fields(
        max_tokens=max_tokens,
        stream=fields.flag("stream", False),
        temperature=fields.number("temperature", 0, 2),
        top_p=fields.number("top_p", 0, 1, above_low=True),
        top_k=fields.integer("top_k", 0, MAX_TOKEN_ID),
        stop=_stop_sequences(fields.take("stop_sequences")),
    )
    return _parse(fields, body, unknown, max_tokens)


def parse_token_count(raw: dict[str, Any], unknown: UnknownFields = UnknownFields.REFUSE) -> ChatRequest:
    """Parse the body of `count_tokens`: a message without options of the answer. Raises RefusedError as above."""
    return _parse(Fields(raw), ChatBody(), unknown)


def _parse(fields: Fields, body: ChatBody, unknown: UnknownFields, max_tokens: int | None = None) -> ChatRequest:
    """Parse the fields that both bodies have. `max_tokens`: None if nothing is generated."""
    body.set_fields(model=fields.require("model"), priority=fields.take("priority"))
    body.set_fields(service_tier=_service_tier(fields.take("service_tier")))
    _read_system(fields.take("system"), body)
    _read_messages(fields.require("messages"), body)
    choice = _read_tool_choice(fields.take("tool_choice"), body)
    tools = read_message_tools(fields.take("tools"), is_free=choice in (None, "auto", "none"))
    body.set_functions(tools.functions, tools.origins)
    _refuse_thread(fields.take("thread"))
    _read_thinking(fields.take("thinking"), body, max_tokens)
    _read_output(fields.take("output_config"), body)
    if (form := fields.take("output_format")) is not None:  # the name that `output_config.format` had before
        body.set_fields(response_format=_format(form, "output_format"))
    fields.refuse("container", "tools run at the client")
    fields.refuse("mcp_servers", "tools run at the client", harmless=([],))
    fields.refuse("context_management", "a conversation is used as it was sent", harmless=_NO_EDITS)
    fields.ignore(*_IGNORED, max_bytes=MAX_IGNORED_BYTES)
    return body.parse((*fields.end(unknown), *tools.skipped))


def _service_tier(value: Any) -> Any:
    """The tier by OpenAI's name: this API calls the default tier another name."""
    return "default" if value == "standard_only" else value


def _stop_sequences(value: Any) -> list[Any] | None:
    if value is not None and not isinstance(value, list):
        raise wrong_type("stop_sequences", f"a list of at most {MAX_STOPS} strings")
    return value


def _read_system(value: Any, body: ChatBody) -> None:
    if value is not None and value != "":
        body.add_text("system", "system", _texts(value, "system"))


def _read_messages(value: Any, body: ChatBody) -> None:
    if not isinstance(value, list):
        raise wrong_type("messages", "a list of messages")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise invalid("messages", f"'messages' must have 1 to {MAX_MESSAGES} entries.", "out_of_range")
    for index, entry in enumerate(value):
        _read_message(entry, f"messages[{index}]", body)
    if body.last is not None and body.last["role"] == "assistant":  # the client wrote the beginning of the answer
        body.set_fields(continue_final_message=True)


def _read_message(value: Any, path: str, body: ChatBody) -> None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    role, content = fields.require("role"), fields.require("content")
    fields.ignore(*_OF_MESSAGES, *BESIDE_TEXTS, max_bytes=MAX_TEXT_CHARS)
    fields.end()
    if role not in ("user", "assistant", "system"):
        raise invalid(f"{path}.role", f"'{path}.role' must be one of user, assistant, system.")
    if isinstance(content, str):
        body.add_text(path, role, [text_part(check_text(content, f"{path}.content", MAX_TEXT_CHARS))])
        return
    if content == [] and role == "assistant":  # an answer without text is resent as it came
        body.add_text(path, role, [])
        return
    for index, block in enumerate(_blocks(content, f"{path}.content")):
        _read_block(block, role, f"{path}.content[{index}]", body)


def _blocks(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise wrong_type(path, "a string or a list of blocks")
    if not 1 <= len(value) <= MAX_PARTS:
        raise invalid(path, f"'{path}' must have 1 to {MAX_PARTS} entries.", "out_of_range")
    return value


def _read_block(value: Any, role: str, path: str, body: ChatBody) -> None:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    match (role, fields.require("type")):
        case (_, "text") | ("user", "document" | "search_result"):
            body.add_text(path, role, [text_part(read_text_block(value, path))])
            return
        case ("assistant", "thinking"):
            body.add_reasoning(path, check_text(fields.require("thinking"), f"{path}.thinking", MAX_TEXT_CHARS))
            fields.text("signature", MAX_TEXT_CHARS)
        case ("assistant", "tool_use"):
            arguments = fields.require("input")
            if not isinstance(arguments, dict):
                raise wrong_type(f"{path}.input", "an object")
            body.add_call(path, fields.require("id"), fields.require("name"), json.dumps(arguments, ensure_ascii=False))
        case ("user", "tool_result"):
            content = fields.take("content")
            parts = [] if content is None else _texts(content, f"{path}.content")
            body.add_result(path, fields.require("tool_use_id"), parts)
            fields.flag("is_error", False)
        case ("assistant", "redacted_thinking"):
            fields.text("data", MAX_TEXT_CHARS)
        case ("assistant", "compaction"):
            body.add_text(path, role, [text_part(fields.text("content", MAX_TEXT_CHARS) or "")])
            fields.text("encrypted_content", MAX_TEXT_CHARS)
            fields.text("signature", MAX_TEXT_CHARS)
        case ("assistant", str(kind)) if _SERVER_BLOCK.fullmatch(kind):
            return  # what another provider's tool did; there is nothing that a template could show
        case (_, kind):
            raise unsupported(f"{path}.type", f"blocks of type {str(kind)[:32]!r} are not available for {role}")
    fields.ignore("caller", "toolset_name", *BESIDE_TEXTS, max_bytes=MAX_IGNORED_BYTES)
    fields.end()


def _texts(value: Any, path: str) -> list[dict[str, Any]]:
    """Read a string, or blocks that can be shown as text."""
    if isinstance(value, str):
        return [text_part(check_text(value, path, MAX_TEXT_CHARS))]
    if value == []:
        return []
    blocks = enumerate(_blocks(value, path))
    return [text_part(read_text_block(block, f"{path}[{index}]")) for index, block in blocks]


def _refuse_thread(thread: Any) -> None:
    """Refuse a conversation that the server keeps, in the words after which Anthropic's client goes on without it."""
    if thread is not None:
        reason = "'thread' is not supported: conversations are not stored; send all messages with each request"
        raise invalid("thread", reason, THREAD_UNSUPPORTED)


def _read_tool_choice(value: Any, body: ChatBody) -> Any:
    """Read the choice, and return it as a chat's."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise wrong_type("tool_choice", "an object")
    fields = Fields(value, "tool_choice.")
    kind = fields.require("type")
    choices: dict[Any, Any] = {"auto": "auto", "any": "required", "none": "none"}
    if kind == "tool":
        choices["tool"] = {"type": "function", "function": {"name": fields.require("name")}}
    if not isinstance(kind, str) or kind not in choices:
        raise invalid("tool_choice.type", "'tool_choice.type' must be one of auto, any, tool, none.")
    if fields.flag("disable_parallel_tool_use", False):
        body.set_fields(parallel_tool_calls=False)
    fields.end()
    body.set_fields(tool_choice=choices[kind])
    return choices[kind]


def _read_thinking(value: Any, body: ChatBody, max_tokens: int | None) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise wrong_type("thinking", "an object")
    fields = Fields(value, "thinking.")
    kind = fields.require("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise invalid("thinking.type", "'thinking.type' must be one of enabled, adaptive, disabled.")
    if kind == "enabled":
        budget = check_integer(fields.require("budget_tokens"), "thinking.budget_tokens", 1, MAX_TOKENS)
        if max_tokens is not None and budget >= max_tokens:
            message = f"'thinking.budget_tokens' ({budget}) must be less than 'max_tokens' ({max_tokens})."
            raise invalid("thinking.budget_tokens", message, "out_of_range")
        body.set_fields(max_thinking_tokens=budget)
    if kind == "disabled":
        body.set_fields(reasoning_effort="none")
    fields.text("display", _MAX_WORD)
    fields.end()


def _read_output(value: Any, body: ChatBody) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise wrong_type("output_config", "an object")
    fields = Fields(value, "output_config.")
    effort = fields.text("effort", _MAX_WORD)
    body.set_fields(reasoning_effort="xhigh" if effort == "max" else effort)
    if (form := fields.take("format")) is not None:
        body.set_fields(response_format=_format(form, "output_config.format"))
    fields.end()


def _format(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(path, "an object")
    fields = Fields(value, f"{path}.")
    if fields.require("type") != "json_schema":
        raise invalid(f"{path}.type", f"'{path}.type' must be json_schema.")
    schema = fields.require("schema")
    fields.end()
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
